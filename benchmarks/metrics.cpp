// How long the numbers of OpAutoCompare take beside one pass over the same memory. Prints one line for each kind of
// data: "dtype,case,seconds of diff_tensors,seconds of the pass", the median over rounds in which the two take turns.
// bench_metrics MILLIONS_OF_ELEMENTS ROUNDS
#include <ATen/Parallel.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "compare/tensor_diff.h"
#include "compare/tolerance.h"

namespace {

using Clock = std::chrono::steady_clock;

template <class Work>
double seconds(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One pass over both, as wide as the memory is: eight sums at once, all of torch's threads.
uint64_t pass_over(const at::Tensor& a, const at::Tensor& b) {
  uint64_t all = 0;
  for (const at::Tensor* tensor : {&a, &b}) {
    const auto* words = static_cast<const uint64_t*>(tensor->const_data_ptr());
    const auto count = static_cast<int64_t>(tensor->nbytes() / sizeof(uint64_t));
    all += at::parallel_reduce(
        0, count, int64_t{1} << 17, uint64_t{0},
        [&](int64_t begin, int64_t end, uint64_t sum) {
          uint64_t lanes[8] = {};
          for (int64_t i = begin; i + 8 <= end; i += 8) {
            for (int64_t k = 0; k < 8; ++k) lanes[k] += words[i + k];
          }
          for (const uint64_t lane : lanes) sum += lane;
          return sum;
        },
        [](uint64_t x, uint64_t y) { return x + y; });
  }
  return all;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** values) {
  const int64_t numel = (count > 1 ? std::atoll(values[1]) : 16) * 1'000'000;
  const int rounds = count > 2 ? std::atoi(values[2]) : 9;
  volatile uint64_t sink = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor golden = at::randn({numel}).to(dtype);
    // By a unit or two: each element differs.
    const at::Tensor near = at::mul(golden.to(at::kDouble), 1 + 1.5 * op_tools::rounding_of(dtype).unit).to(dtype);
    for (const auto& [name, result] : {std::pair{"equal bits", golden.clone()}, std::pair{"rounding apart", near}}) {
      std::vector<double> ours, bare;
      for (int round = -1; round < rounds; ++round) {
        const double diff =
            seconds([&, &result = result] { sink = sink + op_tools::diff_tensors(result, golden).numel; });
        const double pass = seconds([&, &result = result] { sink = sink + pass_over(result, golden); });
        if (round < 0) continue;
        ours.push_back(diff);
        bare.push_back(pass);
      }
      std::printf("%s,%s,%.9f,%.9f\n", c10::toString(dtype), name, median(ours), median(bare));
    }
  }
  return 0;
}
