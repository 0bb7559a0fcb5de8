#include "runs/many_runs.h"

#include <map>
#include <optional>

#include "base/error.h"
#include "hooks/op_traits.h"
#include "runs/call_keys.h"

namespace op_tools {
namespace {

// What a call read and made, as far as bits tell.
struct Bits {
  std::vector<uint64_t> read, made, parameters;
  bool known = true;
};

class OddFinder {
 public:
  explicit OddFinder(const std::vector<const Recording*>& runs) : runs_(runs), odd_(runs.size(), false) {
    for (size_t i = 0; i < runs.size(); ++i) {
      unwritten_.push_back(unwritten_values(*runs[i]));
      if (i > 0) alignments_.push_back(align_runs(*runs[0], *runs[i]));
    }
  }

  std::vector<OddCall> find() {
    for (uint32_t call = 0; call < runs_[0]->calls.size(); ++call) look_at(call);
    return std::move(found_);
  }

 private:
  Bits bits_of(size_t run, uint32_t number) const {
    const Recording& all = *runs_[run];
    const RecordedCall& call = all.calls[number];
    Bits bits;
    for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
      const uint32_t value_number = all.uses[call.first_use + i].value;
      if (unwritten_[run][value_number]) continue;
      const RecordedValue& value = all.values[value_number];
      bits.known = bits.known && value.hash != 0;
      (i < call.inputs ? bits.read : bits.made).push_back(value.hash);
      if (i < call.inputs && value.origin == Origin::kParameter) bits.parameters.push_back(value.hash);
    }
    return bits;
  }

  void look_at(uint32_t call) {
    std::vector<std::optional<Bits>> bits(runs_.size());
    std::vector<uint32_t> calls(runs_.size(), kNoCall);
    for (size_t run = 0; run < runs_.size(); ++run) {
      calls[run] = run == 0 ? call : alignments_[run - 1].b_of_a[call];
      if (calls[run] == kNoCall) continue;
      bits[run] = bits_of(run, calls[run]);
      if (!bits[run]->known) bits[run].reset();
    }
    vote(bits, calls, &Bits::parameters, /*same_inputs=*/false);
    vote(bits, calls, &Bits::made, !is_collective(runs_[0]->string(runs_[0]->calls[call].op)));
  }

  // Among runs that read the same (or all of them) those are odd whose `what` fewer have than another one.
  void vote(const std::vector<std::optional<Bits>>& bits, const std::vector<uint32_t>& calls,
            std::vector<uint64_t> Bits::*what, bool same_inputs) {
    std::map<std::vector<uint64_t>, std::map<std::vector<uint64_t>, std::vector<uint32_t>>> camps;
    for (uint32_t run = 0; run < bits.size(); ++run) {
      if (!bits[run]) continue;
      camps[same_inputs ? bits[run]->read : std::vector<uint64_t>()][(*bits[run]).*what].push_back(run);
    }
    for (const auto& [inputs, results] : camps) {
      if (results.size() < 2) continue;
      const std::vector<uint32_t>* most = nullptr;
      for (const auto& [result, members] : results) {
        if (most == nullptr || members.size() > most->size()) most = &members;
      }
      for (const auto& [result, members] : results) {
        if (members.size() >= most->size()) continue;
        for (const uint32_t run : members) {
          add(run, calls[run], most->front(), calls[most->front()], members.size(), most->size(),
              what == &Bits::parameters);
        }
      }
    }
  }

  void add(uint32_t run, uint32_t call, uint32_t majority, uint32_t majority_call, size_t like_it, size_t others,
           bool parameter) {
    if (odd_[run]) return;
    odd_[run] = true;
    OddCall found{
        run, call, majority, majority_call, static_cast<uint32_t>(like_it), static_cast<uint32_t>(others), parameter};
    const Recording& all = *runs_[run];
    for (uint32_t i = call; i < all.calls.size() && found.collective == kNoCall; ++i) {
      if (is_collective(all.string(all.calls[i].op))) found.collective = i;
    }
    found_.push_back(found);
  }

  const std::vector<const Recording*>& runs_;
  std::vector<std::vector<bool>> unwritten_;
  std::vector<Alignment> alignments_;  // of run 0 with each other one
  std::vector<bool> odd_;
  std::vector<OddCall> found_;
};

}  // namespace

std::vector<OddCall> find_odd_calls(const std::vector<const Recording*>& runs) {
  if (runs.size() < 3) throw Error("the odd one of fewer than three runs is not known; compare two as A and B");
  return OddFinder(runs).find();
}

}  // namespace op_tools
