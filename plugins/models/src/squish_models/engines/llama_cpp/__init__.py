"""What llama.cpp does with a GGUF: which keys and tensors its loader reads, and what it refuses.

Source: the loader in the source package of xllamacpp 2026.10.11549 (src/llama-model-loader.cpp, src/llama-model.cpp,
src/models/*.cpp, src/llama-vocab.cpp, ggml/src/gguf.cpp), and its verdicts on changed files (tests/oracles).
"""
