"""What llama-server takes for a model: weights, caches, states and buffers, from a GGUF's header alone.

Source: the source package of llama-cpp-python 0.3.36 (llama.cpp of October 2026): src/llama-kv-cache*.cpp,
src/llama-memory-recurrent.cpp, src/llama-graph.cpp, src/models/*.cpp, ggml/src/ggml-alloc.c; and the logs of xllamacpp.
"""
