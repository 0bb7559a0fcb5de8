// How long the numbers of OpAutoCompare take beside a pass over the same memory. Prints a line for each kind of
// data: "dtype,case,seconds of diff_tensors,seconds of the pass", the median over rounds in which the two take turns.
// bench_metrics MILLIONS_OF_ELEMENTS ROUNDS
#include <ATen/Parallel.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compare/metrics/tensor_diff.h"
#include "compare/metrics/tolerance.h"

namespace {

using Clock = std::chrono::steady_clock;

template <class Work>
double seconds(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A pass over both, as wide as the memory is: eight sums at once, a thread for each of torch's.
uint64_t pass_over(const at::Tensor& a, const at::Tensor& b) {
  const auto* left = static_cast<const uint64_t*>(a.const_data_ptr());
  const auto* right = static_cast<const uint64_t*>(b.const_data_ptr());
  const auto count = static_cast<int64_t>(a.nbytes() / sizeof(uint64_t));
  const int64_t parts = at::get_num_threads();
  std::atomic<uint64_t> all{0};
  const auto part = [&](int64_t number) {
    uint64_t lanes[8] = {};
    for (int64_t i = count * number / parts; i + 8 <= count * (number + 1) / parts; i += 8) {
      for (int64_t k = 0; k < 8; ++k) lanes[k] += left[i + k] + right[i + k];
    }
    for (const uint64_t lane : lanes) all += lane;
  };
  std::vector<std::jthread> threads;
  for (int64_t number = 1; number < parts; ++number) threads.emplace_back(part, number);
  part(0);
  threads.clear();  // waits
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
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
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
