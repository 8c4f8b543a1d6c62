// The vocabulary and the merges of a tokenizer.json as two texts: tokens in order of their ids, each with a zero after it, and a
// line for each merge, two tokens with a space between. Reading checks them; what is not as `tokenizers` writes it is left to
// Python, which also says what is wrong.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

using Text = std::string_view;

// Mirrored in library.py.
struct Vocabulary {
    int64_t tokens, merges;                                      // counts
    int64_t tokens_size, merges_size;                            // bytes of `out`
    int64_t vocab_start, vocab_end, merges_start, merges_end;    // where the two values are in the file
};

namespace {

constexpr int DEEPEST = 64;
constexpr size_t MOST_TOKENS = 1 << 20;

// A JSON text, read once from its start. Every function returns false for what it does not expect.
struct Json {
    const char *at, *end;

    void skip_space() {
        while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    }

    bool take(char mark) {
        skip_space();
        if (at >= end || *at != mark) return false;
        at++;
        return true;
    }

    // The text between quotes, with its escapes.
    bool string(Text& text) {
        if (!take('"')) return false;
        const char* start = at;
        while (at < end && *at != '"') {
            if (uint8_t(*at) < 0x20) return false;
            at += *at == '\\' ? 2 : 1;
        }
        if (at >= end) return false;
        text = Text(start, size_t(at++ - start));
        return true;
    }

    bool key(Text& text) { return string(text) && take(':'); }

    // Calls `item` for each item until `close`; an opening bracket was taken.
    template <class Item> bool items(char close, const Item& item) {
        if (take(close)) return true;
        do {
            if (!item()) return false;
        } while (take(','));
        return take(close);
    }

    // Passes a value, which Python parses later.
    bool skip(int depth) {
        Text text;
        if (depth > DEEPEST) return false;
        if (take('{')) return items('}', [&] { return key(text) && skip(depth + 1); });
        if (take('[')) return items(']', [&] { return skip(depth + 1); });
        if (at < end && *at == '"') return string(text);
        const char* start = at;
        while (at < end && !strchr(",]} \n\t\r", *at)) at++;
        return at > start;
    }

    // The number `expected`, as JSON writes it.
    bool number(int64_t expected) {
        skip_space();
        const std::string digits = std::to_string(expected);
        if (size_t(end - at) <= digits.size() || memcmp(at, digits.data(), digits.size())) return false;
        at += digits.size();
        return *at == ',' || *at == '}' || *at == ' ' || *at == '\n' || *at == '\t' || *at == '\r';
    }
};

// Appends a text without its escapes; false for \u, which is left to Python.
bool append(Text text, char*& out) {
    static const char marks[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (text.find('\\') == Text::npos) {
        memcpy(out, text.data(), text.size());
        out += text.size();
        return true;
    }
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] != '\\') {
            *out++ = text[i];
            continue;
        }
        const char* mark = strchr(marks, text[++i]);
        if (!mark || !*mark) return false;
        *out++ = values[mark - marks];
    }
    return true;
}

// The tokens; `seed` is random, so that no file can be made of texts whose hashes collide.
class Tokens {
  public:
    std::vector<Text> texts;

    explicit Tokens(uint64_t seed) : seed(seed) {}

    // Makes the tokens known; false for one that appears twice.
    bool index() {
        size_t size = 64;
        while (size < 2 * texts.size()) size *= 2;
        slots.assign(size, 0);
        for (size_t i = 0; i < texts.size(); i++) {
            uint32_t& slot = find(texts[i]);
            if (slot) return false;
            slot = uint32_t(i + 1);
        }
        return true;
    }

    // Whether a line is two tokens with a space between, which make a token.
    bool has_merge(Text line) {
        const size_t space = line.find(' ');
        if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != Text::npos) return false;
        const Text left = line.substr(0, space), right = line.substr(space + 1);
        joined.assign(left).append(right);
        return find(left) && find(right) && find(joined);
    }

  private:
    uint32_t& find(Text text) {
        for (size_t at = hash(text);; at++) {
            uint32_t& slot = slots[at & (slots.size() - 1)];
            if (!slot || texts[slot - 1] == text) return slot;
        }
    }

    size_t hash(Text text) const {
        uint64_t sum = seed ^ text.size();
        for (size_t i = 0; i < text.size(); i += 8) {
            uint64_t word = 0;
            memcpy(&word, text.data() + i, text.size() - i < 8 ? text.size() - i : 8);
            const unsigned __int128 product = (unsigned __int128)(sum ^ word) * 0x9E3779B97F4A7C15u;
            sum = uint64_t(product) ^ uint64_t(product >> 64);
        }
        return size_t(sum);
    }

    uint64_t seed;
    std::vector<uint32_t> slots;
    std::string joined;
};

// Reads the file; the texts go to `out`.
class Scan {
  public:
    Scan(Json json, uint64_t seed, char* out) : json(json), start(json.at), out(out), tokens(seed) {}

    bool run(Vocabulary& found) {
        Text key;
        const bool read = json.take('{') && json.items('}', [&] {
            if (!json.key(key)) return false;
            return key == "model" ? model(found) : json.skip(1);
        });
        json.skip_space();
        return read && json.at == json.end && found.merges_end;
    }

  private:
    bool model(Vocabulary& found) {
        Text key;
        return !found.vocab_end && json.take('{') && json.items('}', [&] {
            if (!json.key(key)) return false;
            json.skip_space();
            const int64_t place = json.at - start;
            char* const first = out;
            if (key == "vocab") {
                if (found.vocab_end || !vocabulary() || !tokens.index()) return false;
                found.vocab_start = place, found.vocab_end = json.at - start;
                found.tokens = int64_t(tokens.texts.size()), found.tokens_size = out - first;
                return true;
            }
            if (key == "merges") {
                if (!found.vocab_end || found.merges_end || !json.take('[')) return false;
                if (!json.items(']', [&] { return found.merges++, merge(); })) return false;
                found.merges_start = place, found.merges_end = json.at - start;
                found.merges_size = out - first;
                return true;
            }
            return json.skip(2);
        });
    }

    // Tokens in order of their ids, each with a zero after it.
    bool vocabulary() {
        Text key;
        return json.take('{') && json.items('}', [&] {
            char* const first = out;
            if (tokens.texts.size() == MOST_TOKENS || !json.key(key) || !append(key, out)) return false;
            if (!json.number(int64_t(tokens.texts.size()))) return false;
            tokens.texts.emplace_back(first, size_t(out - first));
            *out++ = 0;
            return true;
        });
    }

    // A line of two tokens with a space between, from a pair or from such a text.
    bool merge() {
        Text left, right;
        char* const first = out;
        if (json.take('[')) {
            if (!json.string(left) || !json.take(',') || !json.string(right) || !json.take(']')) return false;
            if (!append(left, out)) return false;
            *out++ = ' ';
            if (!append(right, out)) return false;
        } else if (!json.string(left) || !append(left, out)) {
            return false;
        }
        const Text line(first, size_t(out - first));
        *out++ = '\n';
        return line.find('\n') == Text::npos && tokens.has_merge(line);
    }

    Json json;
    const char* start;
    char* out;
    Tokens tokens;
};

// Appends a text as Python's json writes it.
void quote(Text text, char*& out) {
    static const char marks[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t", digits[] = "0123456789abcdef";
    *out++ = '"';
    for (const char c : text) {
        const char* value = c ? strchr(values, c) : nullptr;
        if (value) {
            *out++ = '\\', *out++ = marks[value - values];
        } else if (uint8_t(c) < 0x20) {
            memcpy(out, "\\u00", 4);
            out[4] = digits[c >> 4], out[5] = digits[c & 15], out += 6;
        } else {
            *out++ = c;
        }
    }
    *out++ = '"';
}

void append(const char* text, char*& out) {
    while (*text) *out++ = *text++;
}

// Calls `item(text, index)` for each text that ends with `mark`.
template <class Item> void each(const char* at, const char* end, char mark, const Item& item) {
    for (int64_t index = 0; at < end; index++) {
        const char* stop = (const char*)memchr(at, mark, size_t(end - at));
        item(Text(at, size_t(stop - at)), index);
        at = stop + 1;
    }
}

}  // namespace

// Reads `size` bytes; `out` has as many, which is enough: a text is longer with its quotes and what separates it. It gets the
// tokens, then the merges. Returns 0 for what is left to Python.
API int squish_read_vocabulary(const char* data, int64_t size, uint64_t seed, char* out, Vocabulary* found) {
    try {
        *found = {};
        return Scan({data, data + size}, seed, out).run(*found);
    } catch (...) {
        return 0;
    }
}

// Whether tokens are different, and merges join and make tokens.
API int squish_check_vocabulary(const char* texts, int64_t texts_size, const char* merges, int64_t merges_size, uint64_t seed) {
    try {
        Tokens tokens(seed);
        each(texts, texts + texts_size, 0, [&](Text text, int64_t) { tokens.texts.push_back(text); });
        bool good = tokens.index();
        each(merges, merges + merges_size, '\n', [&](Text line, int64_t) { good = good && tokens.has_merge(line); });
        return good;
    } catch (...) {
        return 0;
    }
}

// Writes both as JSON on one line, the object of tokens and the list of merges; `out` has 6 bytes for each of theirs, and 16 for
// each token and merge. Returns the size of the first; `*size` is that of both.
API int64_t squish_write_vocabulary(const char* tokens, int64_t tokens_size, const char* merges, int64_t merges_size, char* out,
                                    int64_t* size) {
    char* const start = out;
    *out++ = '{';
    each(tokens, tokens + tokens_size, 0, [&](Text token, int64_t id) {
        if (id) append(", ", out);
        quote(token, out);
        append(": ", out);
        append(std::to_string(id).c_str(), out);
    });
    *out++ = '}';
    const int64_t first = out - start;
    *out++ = '[';
    each(merges, merges + merges_size, '\n', [&](Text line, int64_t rank) {
        const size_t space = line.find(' ');
        append(rank ? ", [" : "[", out);
        quote(line.substr(0, space), out);
        append(", ", out);
        quote(line.substr(space + 1), out);
        *out++ = ']';
    });
    *out++ = ']';
    *size = out - start;
    return first;
}
