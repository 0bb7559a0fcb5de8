// The relations that must keep the bits of a call's result, asked of a single call by running it again where the
// program ran it. An object per call, in the program's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "compare/call_facts.h"
#include "compare/rerun/replayable_call.h"
#include "coverage/coverage.h"
#include "coverage/coverage_text.h"
#include "hooks/attention_form.h"
#include "hooks/batch_form.h"
#include "invariance/bit_difference.h"
#include "invariance/invariance_options.h"
#include "invariance/run_changes.h"

namespace op_tools {

enum class Relation : uint8_t {
  kRepeat,     // the same inputs again
  kMemory,     // in memory of another alignment, or without gaps
  kThreads,    // with another number of threads on the CPU
  kStream,     // on another stream of the device
  kNeighbour,  // rows beside other values in the other rows
  kBatch,      // rows in a batch of another size
  kPosition,   // rows at another position of the batch
  kStrides,    // with a gap behind each row in memory
  kShift,      // rows at another place of their sequence
  kSequence,   // the second dimension in pieces, or as a part of a longer sequence
  kPadding,    // attention: with more keys that the mask or the causal order leaves out
  kPieces,     // attention: with its queries in pieces
  kPacked,     // attention: with its sequences behind each other, which a mask keeps apart
  kCount
};
OP_TOOLS_API Token token_of(Relation relation);

// The right result, as the judge of OpAutoCompare knows it: by float64 and the operator's own rounding.
enum class Rightness : uint8_t { kUnknown, kBothRight, kProgramWrong, kOtherWrong, kBothWrong, kCount };
OP_TOOLS_API Token token_of(Rightness rightness);

// Of a transient fault: the run that has other bits than all others.
enum class OddRun : uint8_t { kUnknown, kProgram, kOther };

// The program's result and that of a run which must have the same bits.
struct Variation {
  BitDifference difference;
  // kRepeat: of all runs, the program's among them, a single run has other bits: an intermittent fault. false: several.
  bool transient = false;
  OddRun odd{};
  int64_t runs = 0, other_runs = 0;  // kRepeat: of ours; those with other bits than the program's
  int64_t rows = 0;                  // kNeighbour, kBatch, kPosition, kSequence: of the program's batch
  std::string rows_of_run;           // the rows that ran: "row 0 alone"
  int64_t begins = 0;                // kBatch: the smallest batch with other bits than a smaller batch; 0: not asked
  Rightness rightness{};
  RunChanges changes;  // how the run was made
};

struct RelationVerdict {
  Relation relation{};
  Verdict verdict = Verdict::kAgrees;
  Unjudged unjudged{};  // of kNotJudged
  std::string reason;   // likewise, in words
  std::optional<Variation> variation;
};

// Where their elements begin within the 64 bytes of a line of the cache; 0: they have no memory.
std::vector<uintptr_t> alignments_of(const std::vector<at::Tensor>& tensors);

// A call, or a backward pass over it, as the program ran it.
struct ObservedRun {
  RunOutcome outcome;   // the program's own tensors
  Value random_states;  // Dict {device: state before the call} of the generators that moved; None: it drew nothing
  std::vector<uintptr_t> alignments;                          // of the call's input tensors: alignments_of()
  const std::vector<at::Tensor>* output_gradients = nullptr;  // of a backward pass
  std::vector<bool> compared;  // results: false: memory that is not written, or the backend's own matter
};

// Those that the options want of a call on its device, in the order in which they are asked. kShift, kSequence,
// kPadding, kPieces and kPacked have no verdict where a call has no second dimension with rows, leaves out no keys, or
// is no attention.
std::vector<Relation> wanted_relations(const ResolvedInvarianceOptions& options, bool on_cpu);
// Of a call, or a backward pass over it, of which nothing can be asked: every relation that is wanted.
std::vector<RelationVerdict> nothing_judged(const ResolvedInvarianceOptions& options, bool on_cpu, Unjudged why,
                                            const std::string& reason);

class OP_TOOLS_API CallInvariance {
 public:
  // All are held by reference.
  CallInvariance(const ReplayableCall& call, std::string_view name, const ObservedRun& observed,
                 const ResolvedInvarianceOptions& options);

  // Empty: the call computed nothing that could be compared.
  std::vector<RelationVerdict> judge();

 private:
  using Tensors = std::vector<at::Tensor>;
  struct Rows;
  struct Piece;
  // A run of ours with other inputs.
  struct OtherRun {
    ReplayableCall call;
    std::optional<Tensors> gradients;  // of a backward pass: those that arrive
    RunOutcome outcome;
    Tensors program, values;  // that must have the same bits: the program's and the run's; undefined: not compared
  };

  // On the device. nullopt: it does not return, and `why`. `output_gradients`: nullptr: the program's.
  std::optional<Tensors> again(const ReplayableCall& call, std::string* why = nullptr, RunOutcome* outcome = nullptr,
                               const Tensors* output_gradients = nullptr);
  Tensors values_of(const RunOutcome& outcome) const;
  bool is_backward() const { return observed_.output_gradients != nullptr; }
  ReplayableCall call_with(const RunChanges& changes) const;
  // nullopt: it does not run so, or has nothing that could be compared.
  std::optional<OtherRun> run_with(const RunChanges& changes);
  // nullopt: the same bits.
  std::optional<Variation> variation_of(const OtherRun& run, const RunChanges& changes, std::string text);
  // Is the relation the cause that the run has these values, or does the call not repeat, or did the copies of its
  // inputs change the memory? False: the cause is written down.
  bool is_cause(const Variation& variation, const OtherRun& run);

  void ask();
  void ask(Relation relation);
  bool ask_repeat();
  void ask_memory();
  void ask_threads();
  void ask_stream();
  // The call with these changes, under what `around` does to the run. `around` throws where it cannot.
  void ask_whole(Relation relation, const RunChanges& changes,
                 const std::function<void(const std::function<void()>&)>& around);

  // About rows: form_ is known, unless why_no_rows_ says why not.
  void learn_form();
  void ask_neighbours();
  void ask_positions();
  void ask_batch();
  void ask_strides();
  void ask_shift();
  void ask_sequence();
  // Writes a verdict down, but for rows that have the program's bits.
  void ask_rows(const Rows& rows, Relation relation);
  void ask_places(Relation relation, const std::vector<std::pair<TensorChange, std::string>>& runs);
  bool has_rows(const at::Tensor& tensor) const;
  bool has_sequence(const at::Tensor& tensor) const;
  // All tensors that have the batch, changed so.
  std::optional<RunChanges> changes_of(const TensorChange& change) const;
  std::optional<RunChanges> changes_of_rows(const std::vector<int64_t>& rows, const std::vector<int64_t>& places) const;
  std::optional<RunChanges> changes_of_sequence(const TensorChange& change) const;
  const RelationVerdict* verdict_of(Relation relation) const;
  bool keeps(Relation relation) const;
  bool differs(Relation relation) const;
  bool depends_on_batch() const;
  int64_t most_different(int64_t row, int64_t first) const;
  Tensors batch_values() const;
  // nullopt: a run of the search does not repeat.
  std::optional<int64_t> where_it_begins(int64_t from, int64_t to);

  // About attention_.
  void ask_shift_of_attention();
  void ask_padding();
  void ask_pieces();
  void ask_packed();
  std::vector<size_t> indices_of(const at::Tensor& argument) const;
  void change_input(RunChanges& changes, const at::Tensor& argument, const TensorChanges& steps) const;
  bool change_queries(RunChanges& changes, const TensorChanges& queries, const TensorChange& gradient,
                      const TensorChanges& program, const TensorChanges& other) const;
  // Tokens in front of the first or behind the last: copies of queries, and keys that are left out.
  std::optional<RunChanges> with_more_tokens(int64_t extra, bool in_front) const;
  RunChanges with_more_keys(int64_t extra) const;
  std::optional<RunChanges> changes_of_piece(const Piece& piece) const;

  // `output_gradients`: of the other run; nullptr: the program's.
  Rightness rightness(const ReplayableCall& other_call, const RunOutcome& other,
                      const Tensors* output_gradients = nullptr);
  Verdict verdict_on(const ReplayableCall& call, const RunOutcome& outcome, const Tensors* output_gradients) const;
  void vary(Relation relation, Variation variation);
  void leave(Relation relation, Unjudged why, std::string reason);
  void agree(Relation relation);

  const ReplayableCall& call_;
  const std::string_view name_;
  const ObservedRun& observed_;
  const ResolvedInvarianceOptions& options_;
  Tensors program_;
  std::vector<c10::Device> devices_;  // of the program's tensors, but the CPU
  BatchForm form_;
  std::optional<AttentionForm> attention_;
  std::string why_no_rows_;  // no more relations of rows are asked
  Unjudged no_rows_{};       // its kind
  Tensors batch_values_;     // batch_values(), on the CPU
  std::optional<Verdict> program_verdict_;
  std::vector<RelationVerdict> verdicts_;
};

}  // namespace op_tools
