// How long two recordings of a million calls take to be aligned and compared, and how much memory: bench_align_runs
// [CALLS] [EDITS]. Calls are those of 24 equal layers of 40 operators, in steps of 10,000 calls; edits insert or delete
// a call at a random place.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "runs/alignment.h"
#include "runs/divergence.h"

using namespace op_tools;  // NOLINT: a program

namespace {

constexpr int64_t kStep = 10'000;

void add_call(Recording* run, int64_t place, uint64_t content) {
  RecordedCall call;
  call.id = run->calls.size() + 1;
  call.step = place / kStep;
  call.op = static_cast<StringNumber>(1 + place % 40);
  call.module = static_cast<StringNumber>(41 + place / 40 % 24);
  call.module_call = static_cast<uint32_t>(place % kStep / 960);
  call.first_use = static_cast<uint32_t>(run->uses.size());
  if (!run->values.empty()) {
    run->uses.push_back({0, static_cast<uint32_t>(run->values.size() - 1)});
    call.inputs = 1;
  }
  RecordedValue value;
  value.origin = Origin::kCall;
  value.producer = static_cast<uint32_t>(run->calls.size());
  value.known = true;
  value.dtype = c10::ScalarType::Float;
  value.shape = value.stride = static_cast<ListNumber>(place % 3);
  value.hash = content;
  value.min = -1, value.max = 1, value.norm = 10;
  run->uses.push_back({0, static_cast<uint32_t>(run->values.size())});
  call.outputs = 1;
  run->values.push_back(value);
  run->calls.push_back(call);
}

Recording synthetic_run(int64_t calls, int64_t edits, uint64_t seed) {
  Recording run;
  run.lists = {{16}, {32}, {64}};
  run.strings = {""};
  for (int i = 0; i < 40; ++i) run.strings.push_back("aten::op" + std::to_string(i));
  for (int i = 0; i < 24; ++i) run.strings.push_back("Net.layers." + std::to_string(i));
  std::mt19937_64 random(seed), contents(1);
  for (int64_t i = 0; i < calls; ++i) {
    // The same bits on both sides up to the middle, others after it.
    const uint64_t content = contents() + (i > calls / 2 ? seed : 0);
    const bool edited = edits > 0 && random() % static_cast<uint64_t>(calls) < static_cast<uint64_t>(edits);
    if (edited && random() % 2 == 0) continue;
    add_call(&run, i, content | 1);
    if (edited) add_call(&run, i, random() | 1);
  }
  return run;
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t calls = count > 1 ? std::atoll(arguments[1]) : 1'000'000;
  const int64_t edits = count > 2 ? std::atoll(arguments[2]) : 1'000;
  const Recording a = synthetic_run(calls, 0, 0), b = synthetic_run(calls, edits, 7);
  const auto started = std::chrono::steady_clock::now();
  const Alignment alignment = align_runs(a, b);
  const auto aligned = std::chrono::steady_clock::now();
  const Divergence divergence = find_divergence(a, b, alignment);
  const auto compared = std::chrono::steady_clock::now();
  size_t pairs = 0;
  for (const uint32_t partner : alignment.b_of_a) pairs += partner != kNoCall;
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
  std::printf("%lld calls, %lld edits: %.2f s to align, %.2f s to judge, %zu pairs, %zu rows, %.0f MB at most\n",
              static_cast<long long>(calls), static_cast<long long>(edits), seconds(started, aligned),
              seconds(aligned, compared), pairs, divergence.rows.size(), static_cast<double>(used.ru_maxrss) / 1024);
  return 0;
}
