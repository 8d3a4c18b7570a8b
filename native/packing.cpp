// Packs GGUF blocks into the layouts of transom.ops.protocol: exact, in parallel over tiles of 16 outputs.
//
// transom.weights.blocks does the same in numpy; tests compare the two to the bit. Source of the block
// layouts: ggml-common.h of the ggml project.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "module.h"

namespace nb = nanobind;

namespace {

constexpr int64_t tile_lanes = 16;       // outputs per tile
constexpr int block_elements_max = 256;  // elements of the largest block
constexpr int block_groups_max = 16;     // groups of the block with the most
constexpr int64_t tiles_per_claim =
    32;  // that a thread takes at a time; starting a thread for fewer costs more than it saves

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

uint16_t read_u16(const uint8_t* from) {
    uint16_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

uint32_t read_u32(const uint8_t* from) {
    uint32_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

float float_of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u;
    const uint32_t mantissa = half & 0x3FFu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
        const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t high = exponent == 31 ? 255u : exponent + 112u;
    return float_of_bits(sign | (high << 23) | (mantissa << 13));
}

// ---------------------------------------------------------------- quantized blocks

// A decoded block: value[k] = scales[k / group] * codes[k] + zero_offsets[k / group]. zero_offsets are set
// only if the format has them.
struct Block {
    int8_t codes[block_elements_max];
    float scales[block_groups_max];
    float zero_offsets[block_groups_max];
};

void decode_q8_0(const uint8_t* from, Block& block) {
    block.scales[0] = float_of_half(read_u16(from));
    std::memcpy(block.codes, from + 2, 32);
}

// Reads 32 codes and subtracts `zero`, the stored code of value 0. Bit k of `fifth` is the fifth bit of code
// k.
void read_codes(const uint8_t* nibbles, uint32_t fifth, int zero, int8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = static_cast<int8_t>(((nibbles[i] & 15) | (((fifth >> i) & 1) << 4)) - zero);
        codes[i + 16] = static_cast<int8_t>(((nibbles[i] >> 4) | (((fifth >> (i + 16)) & 1) << 4)) - zero);
    }
}

void decode_q4_0(const uint8_t* from, Block& block) {
    block.scales[0] = float_of_half(read_u16(from));
    read_codes(from + 2, 0, 8, block.codes);
}

void decode_q4_1(const uint8_t* from, Block& block) {
    block.scales[0] = float_of_half(read_u16(from));
    block.zero_offsets[0] = float_of_half(read_u16(from + 2));
    read_codes(from + 4, 0, 0, block.codes);
}

void decode_q5_0(const uint8_t* from, Block& block) {
    block.scales[0] = float_of_half(read_u16(from));
    read_codes(from + 6, read_u32(from + 2), 16, block.codes);
}

void decode_q5_1(const uint8_t* from, Block& block) {
    block.scales[0] = float_of_half(read_u16(from));
    block.zero_offsets[0] = float_of_half(read_u16(from + 2));
    read_codes(from + 8, read_u32(from + 4), 0, block.codes);
}

// The first 16 bytes of a block of Q4_K or Q5_K: scales and zero offsets of its eight groups. ggml subtracts
// minima; here offsets are added, hence the minus.
void read_eight_groups(const uint8_t* from, Block& block) {
    const float scale = float_of_half(read_u16(from));
    const float minimum_scale = float_of_half(read_u16(from + 2));
    const uint8_t* packed = from + 4;  // eight pairs of 6 bits in 12 bytes
    for (int g = 0; g < 8; ++g) {
        int s = packed[g] & 63;
        int m = packed[g + 4] & 63;
        if (g >= 4) {
            s = (packed[g + 4] & 15) | ((packed[g - 4] >> 6) << 4);
            m = (packed[g + 4] >> 4) | ((packed[g] >> 6) << 4);
        }
        block.scales[g] = scale * static_cast<float>(s);
        block.zero_offsets[g] = -(minimum_scale * static_cast<float>(m));
    }
}

void decode_q4_k(const uint8_t* from, Block& block) {
    read_eight_groups(from, block);
    const uint8_t* nibbles = from + 16;
    for (int pair = 0; pair < 4; ++pair) {
        for (int i = 0; i < 32; ++i) {
            const uint8_t both = nibbles[32 * pair + i];
            block.codes[64 * pair + i] = static_cast<int8_t>(both & 15);
            block.codes[64 * pair + 32 + i] = static_cast<int8_t>(both >> 4);
        }
    }
}

void decode_q5_k(const uint8_t* from, Block& block) {
    read_eight_groups(from, block);
    const uint8_t* fifth = from + 16;  // bit g of byte i belongs to element i of group g
    const uint8_t* nibbles = from + 48;
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 32; ++i) {
            const int four = (nibbles[32 * (g / 2) + i] >> (4 * (g % 2))) & 15;
            block.codes[32 * g + i] = static_cast<int8_t>(four | (((fifth[i] >> g) & 1) << 4));
        }
    }
}

void decode_q6_k(const uint8_t* from, Block& block) {
    const float scale = float_of_half(read_u16(from + 208));
    for (int g = 0; g < 16; ++g) {
        block.scales[g] = scale * static_cast<float>(static_cast<int8_t>(from[192 + g]));
    }
    for (int half = 0; half < 2; ++half) {
        const uint8_t* low = from + 64 * half;
        const uint8_t* high = from + 128 + 32 * half;
        int8_t* codes = block.codes + 128 * half;
        for (int i = 0; i < 32; ++i) {
            codes[i] = static_cast<int8_t>(((low[i] & 15) | ((high[i] & 3) << 4)) - 32);
            codes[i + 32] = static_cast<int8_t>(((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4)) - 32);
            codes[i + 64] = static_cast<int8_t>(((low[i] >> 4) | (((high[i] >> 4) & 3) << 4)) - 32);
            codes[i + 96] = static_cast<int8_t>(((low[i + 32] >> 4) | ((high[i] >> 6) << 4)) - 32);
        }
    }
}

struct Format {
    int type;  // the number of the type in the file
    int elements, bytes, group;
    bool has_zero_offsets;
    void (*decode)(const uint8_t*, Block&);
};

// Type numbers and block sizes as in GGUF files.
constexpr Format formats[] = {
    {2, 32, 18, 32, false, decode_q4_0},   {3, 32, 20, 32, true, decode_q4_1},
    {6, 32, 22, 32, false, decode_q5_0},   {7, 32, 24, 32, true, decode_q5_1},
    {8, 32, 34, 32, false, decode_q8_0},   {12, 256, 144, 32, true, decode_q4_k},
    {13, 256, 176, 32, true, decode_q5_k}, {14, 256, 210, 16, false, decode_q6_k},
};

const Format& format_of(int type) {
    for (const Format& format : formats) {
        if (format.type == type) return format;
    }
    throw std::invalid_argument("not a quantized type");
}

// ---------------------------------------------------------------- rows to tiles

// Rows [first, first + rows) of the packed matrix are the tensor's rows [0, rows). A tile may hold rows of
// two tensors; each writes its own lanes.
struct Placement {
    int64_t first, rows, width;

    int64_t tile_start() const { return first / tile_lanes; }
    int64_t tile_end() const { return (first + rows + tile_lanes - 1) / tile_lanes; }
    int64_t lane_start(int64_t tile) const { return std::max<int64_t>(first - tile * tile_lanes, 0); }
    int64_t lane_end(int64_t tile) const {
        return std::min<int64_t>(first + rows - tile * tile_lanes, tile_lanes);
    }
    int64_t row(int64_t tile, int64_t lane) const { return tile * tile_lanes + lane - first; }
};

template <typename PackTile>
void for_each_tile(const Placement& place, int threads, PackTile pack_tile) {
    const int64_t end = place.tile_end();
    std::atomic<int64_t> next{place.tile_start()};
    auto work = [&] {
        for (int64_t from = next.fetch_add(tiles_per_claim); from < end;
             from = next.fetch_add(tiles_per_claim)) {
            for (int64_t tile = from; tile < std::min(from + tiles_per_claim, end); ++tile) pack_tile(tile);
        }
    };
    const int64_t most = std::min<int64_t>((end - place.tile_start()) / tiles_per_claim, threads);
    std::vector<std::thread> others;
    try {
        while (static_cast<int64_t>(others.size()) + 1 < most) others.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads: the ones that run do all the work
    }
    work();
    for (std::thread& other : others) other.join();
}

struct Target {
    uint8_t* codes;
    float* scales;
    float* zero_offsets;  // or null
    int group;
};

void write_groups(const Format& format, const Block& block, const Target& to, int64_t at) {
    const int repeats = format.group / to.group;
    for (int g = 0; g < format.elements / to.group; ++g) {
        to.scales[at + g * tile_lanes] = block.scales[g / repeats];
        if (to.zero_offsets)
            to.zero_offsets[at + g * tile_lanes] =
                format.has_zero_offsets ? block.zero_offsets[g / repeats] : 0.0f;
    }
}

void write_codes(const Format& format, const Block* blocks, int64_t lane_start, int64_t lane_end,
                 uint8_t* to) {
    for (int quad = 0; quad < format.elements / 4; ++quad) {
        for (int64_t lane = lane_start; lane < lane_end; ++lane) {
            uint32_t four;
            std::memcpy(&four, blocks[lane].codes + 4 * quad, 4);
            four ^= 0x80808080u;  // code + 128
            std::memcpy(to + (quad * tile_lanes + lane) * 4, &four, 4);
        }
    }
}

void pack_tile(const Format& format, const uint8_t* data, const Placement& place, const Target& to,
               int64_t tile) {
    const int64_t blocks_per_row = place.width / format.elements;
    const int64_t lane_start = place.lane_start(tile), lane_end = place.lane_end(tile);
    Block blocks[tile_lanes];
    for (int64_t b = 0; b < blocks_per_row; ++b) {
        const int64_t groups_before = tile * (place.width / to.group) + b * format.elements / to.group;
        for (int64_t lane = lane_start; lane < lane_end; ++lane) {
            format.decode(data + (place.row(tile, lane) * blocks_per_row + b) * format.bytes, blocks[lane]);
            write_groups(format, blocks[lane], to, groups_before * tile_lanes + lane);
        }
        write_codes(format, blocks, lane_start, lane_end,
                    to.codes + (tile * place.width + b * format.elements) * tile_lanes);
    }
}

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

// Checks the shape of an array of tiles, [tiles, width, 16] or [tiles, width, 16, 4].
void check_tiles(const Placement& place, int64_t tiles, int64_t have_width, int64_t width, int64_t lanes) {
    require(place.first >= 0 && place.rows >= 1 && place.width >= 1, "the tensor has no rows");
    require(tiles >= place.tile_end() && have_width == width && lanes == tile_lanes,
            "the target has another shape");
}

void pack_blocks(int type, Bytes data, int64_t rows, int64_t width, int64_t first, int group, Codes codes,
                 Floats scales, std::optional<Floats> zero_offsets, int threads) {
    const Format& format = format_of(type);
    const Placement place{first, rows, width};
    require(group >= 1 && group % 16 == 0 && format.group % group == 0,
            "the group does not divide the group of the format");
    require(width % format.elements == 0, "a row is not whole blocks");
    check_tiles(place, codes.shape(0), codes.shape(1), width / 4, codes.shape(2));
    check_tiles(place, scales.shape(0), scales.shape(1), width / group, scales.shape(2));
    require(codes.shape(3) == 4, "codes must be in runs of 4");
    require(data.shape(0) == static_cast<size_t>(rows * (width / format.elements) * format.bytes),
            "the data has another size than the shape");
    require(zero_offsets || !format.has_zero_offsets, "the format has zero offsets");
    if (zero_offsets)
        check_tiles(place, zero_offsets->shape(0), zero_offsets->shape(1), width / group,
                    zero_offsets->shape(2));
    const Target target{codes.data(), scales.data(), zero_offsets ? zero_offsets->data() : nullptr, group};
    const uint8_t* from = data.data();
    nb::gil_scoped_release release;
    for_each_tile(place, threads, [&](int64_t tile) { pack_tile(format, from, place, target, tile); });
}

// ---------------------------------------------------------------- float rows

// Numbers of the float types in GGUF files.
constexpr int type_f32 = 0, type_f16 = 1, type_bf16 = 30;

float float_of_f32(const uint8_t* from) { return float_of_bits(read_u32(from)); }
float float_of_f16(const uint8_t* from) { return float_of_half(read_u16(from)); }
float float_of_bf16(const uint8_t* from) {
    return float_of_bits(static_cast<uint32_t>(read_u16(from)) << 16);
}

template <int64_t bytes, float (*read)(const uint8_t*)>
void pack_float_tiles(const uint8_t* data, const Placement& place, float* to, int threads) {
    for_each_tile(place, threads, [&](int64_t tile) {
        for (int64_t lane = place.lane_start(tile); lane < place.lane_end(tile); ++lane) {
            const uint8_t* row = data + place.row(tile, lane) * place.width * bytes;
            float* column = to + tile * place.width * tile_lanes + lane;
            for (int64_t k = 0; k < place.width; ++k) column[k * tile_lanes] = read(row + k * bytes);
        }
    });
}

void pack_floats(int type, Bytes data, int64_t rows, int64_t width, int64_t first, Floats values,
                 int threads) {
    const Placement place{first, rows, width};
    check_tiles(place, values.shape(0), values.shape(1), width, values.shape(2));
    require(type == type_f32 || type == type_f16 || type == type_bf16, "not a float type");
    require(data.shape(0) == static_cast<size_t>(rows * width * (type == type_f32 ? 4 : 2)),
            "the data has another size than the shape");
    const uint8_t* from = data.data();
    float* to = values.data();
    nb::gil_scoped_release release;
    if (type == type_f32) pack_float_tiles<4, float_of_f32>(from, place, to, threads);
    if (type == type_f16) pack_float_tiles<2, float_of_f16>(from, place, to, threads);
    if (type == type_bf16) pack_float_tiles<2, float_of_bf16>(from, place, to, threads);
}

}  // namespace

namespace transom {
void register_merges(nb::module_& m);  // merges.cpp
}

void transom::register_packing(nb::module_& m) {
    register_merges(m);
    m.def("pack_blocks", &pack_blocks, nb::arg("type"), nb::arg("data"), nb::arg("rows"), nb::arg("width"),
          nb::arg("first"), nb::arg("group"), nb::arg("codes"), nb::arg("scales"),
          nb::arg("zero_offsets").none(), nb::arg("threads"));
    m.def("pack_floats", &pack_floats, nb::arg("type"), nb::arg("data"), nb::arg("rows"), nb::arg("width"),
          nb::arg("first"), nb::arg("values"), nb::arg("threads"));
}
