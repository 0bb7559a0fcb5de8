// Which calls of a recorded run round the factors of their float32 products to TF32: on CUDA, by the flags in the
// recording's header. Pure functions, any thread.
#pragma once

#include "hooks/op_traits.h"
#include "record/recording.h"

namespace op_tools {

class Tf32Products {
 public:
  explicit Tf32Products(const Recording& run);  // outlives the object

  bool rounds(const RecordedCall& call) const;
  bool rounds_any() const;  // a call of the run

 private:
  const Recording& run_;
  Tf32Flags flags_;  // off where no tensor was on CUDA
};

}  // namespace op_tools
