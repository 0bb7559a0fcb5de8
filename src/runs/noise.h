// How far the values of a program are apart when nothing but its rounding is changed. Pure functions, any thread.
#pragma once

#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/alignment.h"

namespace op_tools {

// A recording of A's program whose rounding was changed: by how much each value may differ.
struct Noise {
  std::vector<double> of_value;  // by number of A's value, relative; NaN: not known
};
OP_TOOLS_API Noise noise_of(const Recording& a, const Recording& other, const Alignment& alignment);
constexpr double kNoiseFactor = 8;  // as many times the noise pass
// Of a value of A; 0: there is no noise recording, or it does not know.
double noise_at(const Noise* noise, uint32_t value_a);

}  // namespace op_tools
