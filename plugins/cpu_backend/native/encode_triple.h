// The TCA-TBE encoder, with the parts of squish_codecs.squizd.tca_tbe: bf16 as three bitmaps of codes, a byte per coded element
// (exponent 1 to 7 above the base), and the others in full.
#pragma once
#include "bits.h"

namespace ISA {

// Rows of `columns` elements; `planes` are three consecutive bitmaps with rows of whole words. Returns the bytes in `high`.
static int64_t encode_triple(const uint16_t* bits, int64_t rows, int64_t columns, int32_t base, uint64_t* planes, uint8_t* high,
                             uint16_t* full) {
    const int64_t words = (columns + 63) / 64;
    const uint8_t* const first = high;
    for (int64_t word = 0; word < rows * words; word++) {
        const int64_t left = columns - word % words * 64, count = left < 64 ? left : 64;
        uint16_t some[64] = {}, whole[64];
        uint8_t codes[64], bytes[64];
        memcpy(some, bits, size_t(count) * 2);
        for (int i = 0; i < 64; i++) {
            const int code = (some[i] >> 7 & 0xff) - base;
            codes[i] = code >= 1 && code <= 7 ? uint8_t(code) : 0;
        }
        for (int64_t i = count; i < 64; i++) codes[i] = 0;
        uint64_t plane[3] = {};
        for (int i = 0; i < 64; i += 8)
            for (int k = 0; k < 3; k++) plane[k] |= gather8<1>(read<uint64_t>(codes + i) >> k) << i;
        for (int k = 0; k < 3; k++) memcpy(planes + k * rows * words + word, plane + k, 8);
        int64_t coded = 0;
        for (int64_t i = 0; i < count; i++) {  // write both; one is overwritten
            bytes[coded] = uint8_t((some[i] >> 8 & 0x80) | (some[i] & 0x7f));
            whole[i - coded] = some[i];
            coded += codes[i] != 0;
        }
        memcpy(high, bytes, size_t(coded)), memcpy(full, whole, size_t(count - coded) * 2);
        bits += count, high += coded, full += count - coded;
    }
    return high - first;
}

}  // namespace ISA
