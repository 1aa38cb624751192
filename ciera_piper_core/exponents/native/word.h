/* Eight values at a time in general registers: the scalar level, and the odd ends of every other level.
 *
 * Words are little endian. A run of fewer than eight values is padded with zeros when it is read, and only
 * the bytes that it has are read or written. */
#ifndef CIERA_WORD_H
#define CIERA_WORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "planes are little endian; this processor is not"
#endif

/* FloatLayout.code. */
enum { TYPE_BF16 = 1, TYPE_FP16 = 2, TYPE_FP32 = 3 };

#define INLINE static inline __attribute__((always_inline))
#define EVERY_BYTE(byte) (UINT64_C(0x0101010101010101) * (byte))

/* Bytes of a value. */
INLINE size_t value_bytes(int type)
{
    return type == TYPE_FP32 ? 4 : 2;
}

/* Bytes of the exponents of so many values, and where those of value `values` begin if it is a multiple of 8. */
INLINE size_t exponent_bytes(int type, size_t values)
{
    return type == TYPE_FP16 ? values / 8 * 5 + (values % 8 * 5 + 7) / 8 : values;
}

/* The same of the second part of the rest; the first is one byte a value. */
INLINE size_t second_bytes(int type, size_t values)
{
    if (type == TYPE_BF16)
        return 0;
    return type == TYPE_FP16 ? values / 8 * 3 + (values % 8 * 3 + 7) / 8 : values * 2;
}

/* Bits of a symbol. */
INLINE unsigned exponent_bits(int type)
{
    return type == TYPE_FP16 ? 5 : 8;
}

/* Eight values apart. symbols, first: a byte a value. second: fp16: three bits a value, one in each byte of
 * second[0]; fp32: two bytes a value. raw: the values themselves. */
typedef struct {
    uint64_t symbols, first, second[2], raw[4];
} word_parts;

/* Reads `bytes` of at most 8. */
INLINE uint64_t read_word(const uint8_t *p, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, p, bytes);
    return word;
}

/* Writes the low `bytes` of at most 8. */
INLINE void write_word(uint8_t *p, uint64_t word, size_t bytes)
{
    memcpy(p, &word, bytes);
}

/* The low byte of each 16 bits of a, then of b. */
INLINE uint64_t low_bytes(uint64_t a, uint64_t b)
{
    a &= UINT64_C(0x00FF00FF00FF00FF);
    b &= UINT64_C(0x00FF00FF00FF00FF);
    a = (a | a >> 8) & UINT64_C(0x0000FFFF0000FFFF);
    b = (b | b >> 8) & UINT64_C(0x0000FFFF0000FFFF);
    a = (a | a >> 16) & 0xFFFFFFFF;
    b = (b | b >> 16) & 0xFFFFFFFF;
    return a | b << 32;
}

/* Four bytes as the low bytes of 16 bits each. */
INLINE uint64_t spread_bytes(uint32_t four)
{
    uint64_t x = four;
    x = (x | x << 16) & UINT64_C(0x0000FFFF0000FFFF);
    return (x | x << 8) & UINT64_C(0x00FF00FF00FF00FF);
}

/* The low 16 bits of each half of a, then of b. */
INLINE uint64_t low_halves(uint64_t a, uint64_t b)
{
    a &= UINT64_C(0x0000FFFF0000FFFF);
    b &= UINT64_C(0x0000FFFF0000FFFF);
    return ((a | a >> 16) & 0xFFFFFFFF) | (b | b >> 16) << 32;
}

/* Two 16-bit numbers as the low halves of 32 bits each. */
INLINE uint64_t spread_halves(uint32_t two)
{
    uint64_t x = two;
    return (x | x << 16) & UINT64_C(0x0000FFFF0000FFFF);
}

/* a + b of each byte, without carries between them. */
INLINE uint64_t bytes_plus(uint64_t a, uint64_t b)
{
    return ((a & EVERY_BYTE(0x7F)) + (b & EVERY_BYTE(0x7F))) ^ ((a ^ b) & EVERY_BYTE(0x80));
}

/* a - b of each byte, likewise. */
INLINE uint64_t bytes_minus(uint64_t a, uint64_t b)
{
    return ((a | EVERY_BYTE(0x80)) - (b & EVERY_BYTE(0x7F))) ^ ((a ^ ~b) & EVERY_BYTE(0x80));
}

/* Eight bytes of `width` bits as one bit string of width bytes. */
INLINE uint64_t pack_bits(uint64_t x, int width)
{
    x = (x & UINT64_C(0x00FF00FF00FF00FF)) | (x >> 8 & UINT64_C(0x00FF00FF00FF00FF)) << width;
    x = (x & UINT64_C(0x0000FFFF0000FFFF)) | (x >> 16 & UINT64_C(0x0000FFFF0000FFFF)) << 2 * width;
    return (x & 0xFFFFFFFF) | x >> 32 << 4 * width;
}

/* The inverse of pack_bits. */
INLINE uint64_t unpack_bits(uint64_t x, int width)
{
    uint64_t pairs = (UINT64_C(1) << 2 * width) - 1, ones = (UINT64_C(1) << width) - 1;
    pairs |= pairs << 32;
    ones |= ones << 16 | ones << 32 | ones << 48;
    x = (x & ((UINT64_C(1) << 4 * width) - 1)) | (x >> 4 * width & ((UINT64_C(1) << 4 * width) - 1)) << 32;
    x = (x & pairs) | (x >> 2 * width & pairs) << 16;
    return (x & ones) | (x >> width & ones) << 8;
}

/* Reads `count` of at most 8 values. */
INLINE word_parts word_take(const int type, const uint8_t *values, size_t count)
{
    word_parts parts = {0};
    size_t bytes = count * value_bytes(type);
    memcpy(parts.raw, values, bytes);
    uint64_t a = parts.raw[0], b = parts.raw[1];
    if (type == TYPE_FP32) {
        parts.second[0] = low_halves(parts.raw[0], parts.raw[1]);
        parts.second[1] = low_halves(parts.raw[2], parts.raw[3]);
        a = low_halves(parts.raw[0] >> 16, parts.raw[1] >> 16);
        b = low_halves(parts.raw[2] >> 16, parts.raw[3] >> 16);
    }
    uint64_t low = low_bytes(a, b), high = low_bytes(a >> 8, b >> 8);
    if (type == TYPE_FP16) {
        parts.symbols = high >> 2 & EVERY_BYTE(31);
        parts.first = low;
        parts.second[0] = (high >> 5 & EVERY_BYTE(4)) | (high & EVERY_BYTE(3));
    } else {
        parts.symbols = (high & EVERY_BYTE(0x7F)) << 1 | (low >> 7 & EVERY_BYTE(1));
        parts.first = (high & EVERY_BYTE(0x80)) | (low & EVERY_BYTE(0x7F));
    }
    return parts;
}

/* Sets raw from the other parts. */
INLINE void word_join(const int type, word_parts *parts)
{
    uint64_t low = parts->first, high;
    if (type == TYPE_FP16) {
        high = (parts->second[0] & EVERY_BYTE(4)) << 5 | parts->symbols << 2 | (parts->second[0] & EVERY_BYTE(3));
    } else {
        low = (parts->first & EVERY_BYTE(0x7F)) | (parts->symbols & EVERY_BYTE(1)) << 7;
        high = (parts->first & EVERY_BYTE(0x80)) | (parts->symbols >> 1 & EVERY_BYTE(0x7F));
    }
    uint64_t a = spread_bytes((uint32_t)low) | spread_bytes((uint32_t)high) << 8;
    uint64_t b = spread_bytes(low >> 32) | spread_bytes(high >> 32) << 8;
    if (type == TYPE_FP32) {
        parts->raw[0] = spread_halves((uint32_t)parts->second[0]) | spread_halves((uint32_t)a) << 16;
        parts->raw[1] = spread_halves(parts->second[0] >> 32) | spread_halves(a >> 32) << 16;
        parts->raw[2] = spread_halves((uint32_t)parts->second[1]) | spread_halves((uint32_t)b) << 16;
        parts->raw[3] = spread_halves(parts->second[1] >> 32) | spread_halves(b >> 32) << 16;
    } else {
        parts->raw[0] = a;
        parts->raw[1] = b;
    }
}

/* Reads the symbols of `count` of at most 8 values, the first of which is number `at`, a multiple of 8. */
INLINE uint64_t word_get_symbols(const int type, const uint8_t *exponents, size_t at, size_t count)
{
    uint64_t word = read_word(exponents + exponent_bytes(type, at), exponent_bytes(type, count));
    return type == TYPE_FP16 ? unpack_bits(word, 5) : word;
}

/* Writes them; symbols of values beyond count must be zero. */
INLINE void word_put_symbols(const int type, uint64_t symbols, uint8_t *exponents, size_t at, size_t count)
{
    uint64_t word = type == TYPE_FP16 ? pack_bits(symbols, 5) : symbols;
    write_word(exponents + exponent_bytes(type, at), word, exponent_bytes(type, count));
}

/* Reads the two parts of the rest. */
INLINE void word_get_rest(const int type, word_parts *parts, const uint8_t *first, const uint8_t *second, size_t at,
                          size_t count)
{
    parts->first = read_word(first + at, count);
    if (type == TYPE_FP16)
        parts->second[0] = unpack_bits(read_word(second + at / 8 * 3, second_bytes(type, count)), 3);
    if (type == TYPE_FP32) {
        parts->second[0] = parts->second[1] = 0;
        memcpy(parts->second, second + at * 2, count * 2);
    }
}

/* Writes the two parts of the rest. */
INLINE void word_put_rest(const int type, const word_parts *parts, uint8_t *first, uint8_t *second, size_t at,
                          size_t count)
{
    write_word(first + at, parts->first, count);
    if (type == TYPE_FP16)
        write_word(second + at / 8 * 3, pack_bits(parts->second[0], 3), second_bytes(type, count));
    if (type == TYPE_FP32)
        memcpy(second + at * 2, parts->second, count * 2);
}

#endif
