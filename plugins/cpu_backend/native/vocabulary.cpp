// The vocabulary and the merges of a tokenizer.json as two lists of texts, each with a zero after it: tokens in order of their
// ids, and merges as two tokens with a space between. Reading checks them; what is not as `tokenizers` writes it is left to
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
constexpr int64_t MOST_BYTES = 64 << 20, MOST_TEXTS = 1 << 20;    // more is left to Python, which has the limits

// A JSON text, read once from its start. Every function returns false for what it does not expect.
struct Json {
    const char *at, *end;
    bool escaped = false;    // whether the last string has escapes

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
        const char *start = at, *stop = at;
        escaped = false;
        while (stop < end && *stop != '"') {
            if (uint8_t(*stop) < 0x20) return false;
            escaped |= *stop == '\\';
            stop += *stop == '\\' ? 2 : 1;
        }
        if (stop >= end) return false;
        text = Text(start, size_t(stop - start));
        at = stop + 1;
        return true;
    }

    // Appends the text between quotes without its escapes; false for \u, which is left to Python.
    bool string(char*& out) {
        static const char marks[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        Text text;
        if (!string(text)) return false;
        if (!escaped) {
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

// The tokens; `seed` is random, so that no file can be made of texts whose hashes collide.
class Tokens {
  public:
    std::vector<Text> texts;

    explicit Tokens(uint64_t seed) : seed(seed) {}

    // Makes the tokens known; false for one that appears twice.
    bool index() {
        size_t size = 64;
        while (size < 2 * texts.size()) size *= 2;
        slots.assign(size, {});
        for (size_t i = 0; i < texts.size(); i++) {
            Slot& slot = find(texts[i]);
            if (slot.number) return false;
            slot = {tag(hash(texts[i])), uint32_t(i + 1)};
        }
        return true;
    }

    // Whether a text is two tokens with a space between, which make a token: often the one after that of the merge before.
    bool has_merge(Text merge) {
        const size_t space = merge.find(' ');
        if (space == 0 || space >= merge.size() - 1 || merge.find(' ', space + 1) != Text::npos) return false;
        const Text left = merge.substr(0, space), right = merge.substr(space + 1);
        if (!find(left).number || !find(right).number) return false;
        if (made < texts.size() && texts[made].size() == merge.size() - 1 && texts[made].substr(0, space) == left &&
            texts[made].substr(space) == right) {
            made++;
            return true;
        }
        joined.assign(left).append(right);
        made = find(joined).number;
        return made > 0;
    }

  private:
    struct Slot {
        uint32_t tag, number;    // part of the hash, and 1 + the id; 0 if free
    };

    Slot& find(Text text) {
        const uint64_t sum = hash(text);
        for (uint64_t at = sum;; at++) {
            Slot& slot = slots[size_t(at) & (slots.size() - 1)];
            if (!slot.number || (slot.tag == tag(sum) && texts[slot.number - 1] == text)) return slot;
        }
    }

    static uint32_t tag(uint64_t sum) { return uint32_t(sum >> 32); }

    uint64_t hash(Text text) const {
        uint64_t sum = seed ^ text.size();
        for (size_t i = 0; i < text.size(); i += 8) {
            uint64_t word = 0;
            memcpy(&word, text.data() + i, text.size() - i < 8 ? text.size() - i : 8);
            const unsigned __int128 product = (unsigned __int128)(sum ^ word) * 0x9E3779B97F4A7C15u;
            sum = uint64_t(product) ^ uint64_t(product >> 64);
        }
        return sum;
    }

    uint64_t seed;
    size_t made = 0;
    std::vector<Slot> slots;
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
                if (!json.items(']', [&] { return found.merges++ < MOST_TEXTS && merge(); })) return false;
                found.merges_start = place, found.merges_end = json.at - start;
                found.merges_size = out - first;
                return true;
            }
            return json.skip(2);
        });
    }

    // Tokens in order of their ids, each with a zero after it.
    bool vocabulary() {
        return json.take('{') && json.items('}', [&] {
            char* const first = out;
            if (tokens.texts.size() == MOST_TEXTS || !json.string(out) || !json.take(':')) return false;
            if (!json.number(int64_t(tokens.texts.size()))) return false;
            tokens.texts.emplace_back(first, size_t(out - first));
            *out++ = 0;
            return true;
        });
    }

    // Two tokens with a space between, from a pair or from such a text.
    bool merge() {
        char* const first = out;
        if (json.take('[')) {
            if (!json.string(out) || !json.take(',')) return false;
            *out++ = ' ';
            if (!json.string(out) || !json.take(']')) return false;
        } else if (!json.string(out)) {
            return false;
        }
        const Text merge(first, size_t(out - first));
        *out++ = 0;
        return tokens.has_merge(merge);
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
        if (uint8_t(c) >= 0x20 && c != '"' && c != '\\') {
            *out++ = c;
        } else if (const char* value = c ? strchr(values, c) : nullptr) {
            *out++ = '\\', *out++ = marks[value - values];
        } else {
            memcpy(out, "\\u00", 4);
            out[4] = digits[c >> 4], out[5] = digits[c & 15], out += 6;
        }
    }
    *out++ = '"';
}

void append(const char* text, char*& out) {
    while (*text) *out++ = *text++;
}

// Calls `item(text, index)` for each text that ends with a zero.
template <class Item> void each(const char* at, const char* end, const Item& item) {
    for (int64_t index = 0; at < end; index++) {
        const char* stop = (const char*)memchr(at, 0, size_t(end - at));
        if (!stop) stop = end;
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
        return size <= MOST_BYTES && Scan({data, data + size}, seed, out).run(*found);
    } catch (...) {
        return 0;
    }
}

// Whether tokens are different, and merges join and make tokens.
API int squish_check_vocabulary(const char* texts, int64_t texts_size, const char* merges, int64_t merges_size, uint64_t seed) {
    try {
        Tokens tokens(seed);
        each(texts, texts + texts_size, [&](Text text, int64_t) { tokens.texts.push_back(text); });
        bool good = tokens.index();
        each(merges, merges + merges_size, [&](Text merge, int64_t) { good = good && tokens.has_merge(merge); });
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
    each(tokens, tokens + tokens_size, [&](Text token, int64_t id) {
        if (id) append(", ", out);
        quote(token, out);
        append(": ", out);
        append(std::to_string(id).c_str(), out);
    });
    *out++ = '}';
    const int64_t first = out - start;
    *out++ = '[';
    each(merges, merges + merges_size, [&](Text merge, int64_t rank) {
        const size_t space = merge.find(' ');
        append(rank ? ", [" : "[", out);
        quote(merge.substr(0, space), out);
        append(", ", out);
        quote(merge.substr(space + 1), out);
        *out++ = ']';
    });
    *out++ = ']';
    *size = out - start;
    return first;
}
