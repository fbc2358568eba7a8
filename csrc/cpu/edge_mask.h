// The edge mask of a row: the pixels that differ from a valid one in their window. And distances to such ones.
#pragma once

#include <cstdint>
#include <vector>

#include "../distance_search.h"

namespace edgeloss {

constexpr uint16_t kNoLow = 0xffff;  // the bits of an ignored label: larger than any class
constexpr int64_t kEdgeMargin = 16;  // pixels of a vector, at most

// Marks the pixels of a row that differ from the smallest or the largest valid label of their window, which go to low
// and high. rows: of n pixels, all that the windows reach. low and high have room for n + 2 reach + kEdgeMargin
// numbers.
void mark_edges(const int16_t* label, const std::vector<const int16_t*>& rows, int64_t n, int64_t reach, uint16_t* low,
                int16_t* high, uint8_t* edge);

// Of the edges of a prediction, keeps those that the labels have not; returns their number.
int64_t keep_false(const uint8_t* edge, int64_t n, uint8_t* drawn);

// any |= mask.
void merge_row(const uint8_t* mask, int64_t n, uint8_t* any);

// any = whether any of the 2 reach + 1 places from it on is set.
void spread_row(uint8_t* any, int64_t n, int64_t reach);

// The distances of a row of an image's pixels to the nearest one of another class, among the offsets, of increasing
// length: infinite where there is none. Where no pixel of a few next to each other is in `seen`, they are left as they
// are.
template <typename A>
void find_distances(const Geometry& g, const int16_t* label, int64_t row, const std::vector<Offset>& offsets,
                    const uint8_t* seen, A* distance);

// Lists the places, counted from `first`, where the mask of n bytes is 1; returns their number.
int64_t list_places(const uint8_t* mask, int64_t n, int64_t first, int32_t* place);

}  // namespace edgeloss
