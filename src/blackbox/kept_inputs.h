// The inputs of the last calls of chosen operators, in the file of OpBlackBox: as the files of a saved call
// (calls/saved_call.h), so that a call that killed the process can be run again.
//
// They are there before the operator runs, because a process that dies in it writes nothing any more. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/op_filter.h"
#include "blackbox/blackbox_file.h"
#include "blackbox/blackbox_options.h"
#include "hooks/op_call.h"

namespace op_tools {

class KeptInputs {
 public:
  KeptInputs(BlackBoxFile& file, const ResolvedBlackBoxOptions& options, int64_t rank);  // options.inputs > 0

  // In before(). Backward passes of the torch level are over when they are seen: nothing is stored of them.
  bool wants(const OpCall& call);
  Kept keep(OpCall& call);
  // The call has ended: its place may be taken before those of calls that are open.
  void ended(uint64_t call);

 private:
  struct Place {
    uint64_t call = 0;
    bool is_open = false;
    bool is_busy = false;  // it is being written
  };
  Place* take_place(uint64_t call);

  BlackBoxFile& file_;
  const OpFilter ops_;
  const size_t most_bytes_;
  const int64_t rank_;

  std::mutex mutex_;  // guards the places
  std::vector<Place> places_;
};

}  // namespace op_tools
