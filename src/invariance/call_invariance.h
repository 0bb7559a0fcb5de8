// The relations that must keep the bits of a call's result, asked of a single call by running it again where the
// program ran it. An object per call, in the program's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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
  kSequence,   // the second dimension in pieces, or as a part of a longer sequence
  kPadding,    // attention: with more keys that the mask or the causal order leaves out
  kPieces,     // attention: with its queries in pieces
  kCount
};
OP_TOOLS_API Token token_of(Relation relation);

// The right result, as the judge of OpAutoCompare knows it: by float64 and the operator's own rounding.
enum class Rightness : uint8_t { kUnknown, kBothRight, kProgramWrong, kOtherWrong, kBothWrong, kCount };
OP_TOOLS_API Token token_of(Rightness rightness);

// The program's result and that of a run which must have the same bits.
struct Variation {
  BitDifference difference;
  // kRepeat: of all runs, the program's among them, a single run has other bits: an intermittent fault. false: several.
  bool transient = false;
  int64_t runs = 0, other_runs = 0;  // kRepeat: of ours; those with other bits than the program's
  int64_t rows = 0;                  // kNeighbour, kBatch, kPosition, kSequence: of the program's batch
  std::string rows_of_run;           // the rows that ran: "row 0 alone"
  int64_t begins = 0;                // kBatch: the smallest batch with other bits than a smaller batch; 0: not asked
  Rightness rightness{};
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

// Those that the options want of a call on its device, in the order in which they are asked. kSequence, kPadding and
// kPieces have no verdict where a call has no second dimension with rows, leaves out no keys, or is no attention.
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
  using Change = std::function<at::Tensor(const at::Tensor&)>;

  // On the device. nullopt: it does not return, and `why`. `output_gradients`: nullptr: the program's.
  std::optional<Tensors> again(const ReplayableCall& call, std::string* why = nullptr, RunOutcome* outcome = nullptr,
                               const Tensors* output_gradients = nullptr);
  Tensors values_of(const RunOutcome& outcome) const;
  bool is_backward() const { return observed_.output_gradients != nullptr; }
  void ask();
  void ask(Relation relation);
  bool ask_repeat();
  void ask_memory();
  void ask_threads();
  void ask_stream();
  // The same inputs again, those of `call`, under what `around` does to the run. `around` throws where it cannot.
  void ask_whole(Relation relation, const ReplayableCall& call,
                 const std::function<void(const std::function<void()>&)>& around);
  // About rows: form_ is known, unless why_no_rows_ says why not.
  void learn_form();
  void ask_neighbours();
  void ask_positions();
  void ask_batch();
  void ask_strides();
  void ask_sequence();
  void ask_padding();
  void ask_pieces();
  // Writes a verdict down, but for rows that have the program's bits.
  void ask_rows(const Rows& rows, Relation relation);
  // The tensors that have the batch as `change` makes them. nullopt: it does not run so.
  struct Changed;
  std::optional<Changed> changed(const Change& change);
  static std::optional<Tensors> run_values(const std::optional<Changed>& run);
  // Likewise with `extra` keys behind the last.
  std::optional<Changed> padded(const AttentionForm& form, int64_t extra);
  // Queries of attention that run together.
  struct Piece;
  std::optional<Changed> piece_again(const AttentionForm& form, const Piece& piece);
  // Is the relation the cause that a run has these values, or does the call not repeat (`once_more`: the same run), or
  // did the copies of its inputs change the memory (`copied`: the program's call on copies)? False: the cause is
  // written down.
  using RunOnce = std::function<std::optional<Tensors>()>;
  bool is_cause(const Variation& variation, const Tensors& values, const RunOnce& once_more, const Tensors& program,
                const RunOnce& copied);
  const RelationVerdict* verdict_of(Relation relation) const;
  bool keeps(Relation relation) const;
  int64_t most_different(int64_t row, int64_t first) const;
  Tensors batch_values() const;
  ReplayableCall call_of(const std::vector<int64_t>& rows) const;
  // Of a backward pass: the gradients that arrive at these rows. nullopt: not each has the batch.
  std::optional<Tensors> gradients_of(const std::vector<int64_t>& rows) const;
  std::optional<Tensors> rows_again(const std::vector<int64_t>& rows, RunOutcome* outcome = nullptr);
  Tensors rows_of_program(const std::vector<int64_t>& rows) const;
  // nullopt: a run of the search does not repeat.
  std::optional<int64_t> where_it_begins(int64_t from, int64_t to);
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
