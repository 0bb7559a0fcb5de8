// Which tensors of two calls, or of two groups of calls, are compared with each other. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "record/recording.h"
#include "runs/alignment.h"
#include "runs/call_groups.h"

namespace op_tools {

// Two calls, or two groups, that are compared.
struct Compared {
  CallNumbers a, b;
  uint32_t group = kNoCall;  // in Alignment::groups; kNoCall: a single call each
};

class ComparedValues {
 public:
  // They outlive the object.
  ComparedValues(const Recording& a, const Recording& b, const Alignment& alignment);

  ValuePairs inputs(const Compared& calls) const;
  ValuePairs outputs(const Compared& calls) const;
  // Two results of groups that have nothing but the shape in common, and are not the only ones of the groups. Who reads
  // them knows if they belong together.
  bool is_guess(const Compared& calls, uint32_t value_a, uint32_t value_b) const;
  // Two results of a group that are each another result of the other side: readers stand in another order there.
  bool are_exchanged(const Compared& group, uint32_t value_a, uint32_t value_b) const;
  // Of a group.
  Ports ports_a(const Compared& calls) const { return ports_of(a_, calls.a, readers_a_); }
  Ports ports_b(const Compared& calls) const { return ports_of(b_, calls.b, readers_b_); }

 private:
  ValuePairs paired_uses(c10::ArrayRef<RecordedUse> a, c10::ArrayRef<RecordedUse> b) const;

  const Recording &a_, &b_;
  const Alignment& aligned_;
  LastReaders readers_a_, readers_b_;  // empty: there are no groups
};

}  // namespace op_tools
