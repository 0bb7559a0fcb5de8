// Two recordings against each other, and the questions that people ask about the differences. Not changed once made:
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/alignment.h"
#include "runs/divergence.h"
#include "runs/run_rows.h"

namespace op_tools {

class OP_TOOLS_API RunComparison {
 public:
  using SharedRecording = std::shared_ptr<const Recording>;
  // `noise`: another run of A's program, by which it is known how far equal programs differ; nullptr: there is none.
  RunComparison(SharedRecording a, SharedRecording b, const Recording* noise = nullptr,
                const std::vector<Fusion>& fusions = {});

  const SharedRecording& a() const { return a_; }
  const SharedRecording& b() const { return b_; }
  const Alignment& alignment() const { return alignment_; }
  const Divergence& divergence() const { return divergence_; }

  // A row, and the numbers of its calls in A and in B. std::out_of_range where there is no such row.
  RunRow row(size_t number) const;
  std::pair<CallNumbers, CallNumbers> calls_of(size_t number) const;
  std::map<std::string, size_t> counts() const;  // rows by verdict
  // Numbers of the rows with this verdict, the largest share of its limit first.
  std::vector<uint32_t> worst(std::string_view verdict) const;
  // The longest way that a difference took from the row in which it was born.
  std::vector<uint32_t> chain(uint32_t source) const;
  std::vector<uint32_t> births() const;
  std::vector<uint32_t> other_dtypes() const;  // rows that have a result of another dtype in B

 private:
  template <class Asked>
  std::vector<uint32_t> rows_with(const Asked& asked) const;

  const SharedRecording a_, b_;
  const bool has_noise_;
  Alignment alignment_;
  Divergence divergence_;
};

}  // namespace op_tools
