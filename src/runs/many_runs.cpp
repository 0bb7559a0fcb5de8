#include "runs/many_runs.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "hooks/op_traits.h"
#include "runs/call_facts.h"
#include "runs/call_keys.h"
#include "runs/collective_results.h"
#include "runs/end_results.h"
#include "runs/same_calls.h"

namespace op_tools {
namespace {

using Hashes = c10::SmallVector<uint64_t, 4>;  // of most calls on the stack

// Inputs and results of a call, as far as bits tell.
struct Bits {
  Hashes read, results, parameters;
  std::string_view scalars;  // the process group is among them
  bool read_known = true, results_known = true;
};

struct CallOfRun {
  uint32_t run = 0, call = 0;
};

struct CollectiveCall {
  GroupOfCall group;
  uint32_t form = 0;  // a number for form_on_all_ranks(), of all runs; 0: empty
};

class OddFinder {
 public:
  OddFinder(const std::vector<const Recording*>& runs, std::vector<uint32_t> launches)
      : runs_(runs), launches_(std::move(launches)) {
    for (size_t i = 0; i < runs.size(); ++i) {
      unwritten_.push_back(unwritten_values(*runs[i]));
      begin_.push_back(begin_of(*runs[i]));
      all_.push_back(static_cast<uint32_t>(i));
      forward_.push_back(needs_forward_calls(*runs[i]) ? forward_calls(*runs[i]) : CallsById());
      if (i == 0) continue;
      const bool same = have_same_form(*runs[0], *runs[i]);
      alignments_.push_back(same ? alignment_of_same(*runs[0]) : align_runs(*runs[0], *runs[i]));
    }
    are_shards_ = hold_shards();
    are_ranks_ = have_ranks();
    if (launches_.empty()) launches_.assign(runs.size(), 0);
    has_launches_ =
        std::any_of(launches_.begin(), launches_.end(), [&](uint32_t launch) { return launch != launches_[0]; });
    paired_.resize(runs.size());
    collectives_.resize(runs.size());
  }

  OddCalls find() {
    in_step_.assign(runs_.size(), true);
    for (size_t run = 1; run < runs_.size(); ++run) in_step_[run] = has_the_calls_of_first(run);
    if (are_ranks_) look_at_collectives_in_order();
    for (uint32_t call = 0; call < runs_[0]->calls.size(); ++call) {
      if (alignments_.front().moves_a[call]) {
        look_at_move(call);
      } else {
        look_at(call);
      }
    }
    count_calls_without_partner();
    look_at_parameters();
    std::vector<uint32_t> apart(runs_.size(), 0);
    for (size_t run = 1; run < runs_.size(); ++run) {
      const Alignment& pairs = alignments_[run - 1];
      apart[run] = calls_apart(*runs_[0], [&](uint32_t call) { return pairs.alone_in_a(call); }) +
                   calls_apart(*runs_[run], [&](uint32_t call) { return pairs.alone_in_b(call); });
    }
    mark_reached();
    return {std::move(odd_calls_), std::move(apart), counts_};
  }

 private:
  // Calls without a partner whose results a call with a partner reads.
  template <class IsAlone>
  static uint32_t calls_apart(const Recording& run, const IsAlone& is_alone) {
    std::vector<uint32_t> maker(run.values.size(), kNoCall);  // by value: the call without a partner that made it
    std::vector<bool> is_read(run.calls.size(), false);
    for (uint32_t number = 0; number < run.calls.size(); ++number) {
      const RecordedCall& call = run.calls[number];
      const bool alone = is_alone(number);
      for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
        const uint32_t value = run.uses[call.first_use + i].value;
        if (i >= call.inputs) {
          maker[value] = alone ? number : kNoCall;
        } else if (!alone && maker[value] != kNoCall) {
          is_read[maker[value]] = true;
        }
      }
    }
    return static_cast<uint32_t>(std::count(is_read.begin(), is_read.end(), true));
  }

  // At the torch level a gradient depends on values of the forward call, which are no inputs of the backward call.
  static bool needs_forward_call(const RecordedCall& call) {
    return call.phase == Phase::kBackward && call.level == Level::kTorch;
  }
  static bool needs_forward_calls(const Recording& run) {
    return std::any_of(run.calls.begin(), run.calls.end(), needs_forward_call);
  }

  Bits bits_of(size_t run, uint32_t number) const {
    const Recording& all = *runs_[run];
    const RecordedCall& call = all.calls[number];
    Bits bits;
    bits.scalars = all.string(call.scalars);
    const std::string_view op = all.string(call.op);
    const bool is_shared = is_collective(op);
    each_value(run, call, [&](const RecordedValue& value, bool is_input, std::string_view place) {
      if (!is_input && is_shared && !is_received(op, place)) return;
      (is_input ? bits.read_known : bits.results_known) &= value.hash != 0;
      (is_input ? bits.read : bits.results).push_back(value.hash);
      if (is_input && value.origin == Origin::kParameter) bits.parameters.push_back(value.hash);
    });
    if (!needs_forward_call(call)) return bits;
    const auto forward = forward_[run].find(call.forward_id);
    bits.read_known &= forward != forward_[run].end();
    if (!bits.read_known) return bits;
    each_value(run, all.calls[forward->second], [&](const RecordedValue& value, bool, std::string_view) {
      bits.read_known &= value.hash != 0;
      bits.read.push_back(value.hash);
    });
    return bits;
  }

  template <class Visit>
  void each_value(size_t run, const RecordedCall& call, const Visit& visit) const {
    for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
      const RecordedUse& use = runs_[run]->uses[call.first_use + i];
      if (unwritten_[run][use.value]) continue;
      visit(runs_[run]->values[use.value], i < call.inputs, runs_[run]->string(use.place));
    }
  }

  void look_at(uint32_t call) {
    const std::string_view op = runs_[0]->string(runs_[0]->calls[call].op);
    const bool is_shared = is_collective(op);
    std::vector<std::optional<Bits>> bits(runs_.size());
    std::vector<uint32_t> calls(runs_.size(), kNoCall);
    for (size_t run = 0; run < runs_.size(); ++run) {
      calls[run] = run == 0 ? call : alignments_[run - 1].b_of_a[call];
      if (calls[run] == kNoCall) continue;
      bits[run] = bits_of(run, calls[run]);
      const bool is_known = bits[run]->results_known && (is_shared || bits[run]->read_known);
      if (!is_known) bits[run].reset();
    }
    is_compared_.assign(runs_.size(), false);
    if (!is_shared) vote(bits, calls, all_, OddFinding::kParameter);
    look_at_memory(bits, calls);
    const bool is_drawn = !is_shared && are_ranks_ && may_be_of_rank(op, calls);
    if (is_shared) {
      look_at_collective_by_alignment(bits, calls);
    } else if (!is_drawn) {
      vote(bits, calls, all_, OddFinding::kResults);
    }
    count(calls, bits, is_drawn);
  }

  // --- Collectives

  // Its facts are JSON, and the same in each step.
  const CollectiveCall& collective(uint32_t run, uint32_t number) {
    const Recording& all = *runs_[run];
    const RecordedCall& call = all.calls[number];
    std::vector<uint32_t> key{call.op, call.scalars};
    for (const RecordedUse& use : all.inputs(call)) key.push_back(all.values[use.value].shape);
    const auto [entry, is_new] = collectives_[run].try_emplace(std::move(key));
    if (is_new) {
      const std::string form = form_on_all_ranks(all, number);
      if (!form.empty()) entry->second.form = forms_.try_emplace(form, forms_.size() + 1).first->second;
      entry->second.group = group_of(all, number);
      if (entry->second.group.name.empty()) entry->second.group.ranks = number_in(run, "world_size", 0);
    }
    return entry->second;
  }

  // All ranks of a group call its collectives in the same order, and alone those of the same number belong together:
  // ranks whose other calls differ (each steps its own share of the parameters) are aligned otherwise. Of groups of
  // which the recordings have all of that.
  void look_at_collectives_in_order() {
    struct Member {
      std::vector<uint32_t> calls, forms;
    };
    std::map<std::string, std::map<uint32_t, Member>> groups;  // by run
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      const Recording& all = *runs_[run];
      std::vector<std::optional<bool>> is_shared(all.strings.size());  // by operator
      for (uint32_t call = 0; call < all.calls.size(); ++call) {
        std::optional<bool>& known = is_shared[all.calls[call].op];
        if (!known) known = is_collective(all.string(all.calls[call].op));
        if (!*known) continue;
        const CollectiveCall& shared = collective(run, call);
        if (shared.form == 0) continue;
        Member& member = groups[shared.group.name][run];
        member.calls.push_back(call);
        member.forms.push_back(shared.form);
      }
    }
    is_compared_.assign(runs_.size(), false);
    std::vector<uint32_t> calls(runs_.size(), kNoCall);
    std::vector<std::optional<Bits>> bits(runs_.size());
    for (const auto& [name, members] : groups) {
      const std::vector<uint32_t>& forms = members.begin()->second.forms;
      const auto has_them = [&](const auto& member) { return member.second.forms == forms; };
      if (!std::all_of(members.begin(), members.end(), has_them)) continue;
      std::vector<uint32_t> runs;
      for (const auto& [run, member] : members) runs.push_back(run);
      for (size_t number = 0; number < forms.size(); ++number) {
        for (const auto& [run, member] : members) {
          calls[run] = member.calls[number];
          bits[run] = bits_of(run, calls[run]);
          if (!bits[run]->results_known) bits[run].reset();
          is_compared_[run] = false;
        }
        look_at_results_of_collective(bits, calls, runs);
        for (const uint32_t run : runs) paired_[run].emplace(calls[run], static_cast<bool>(is_compared_[run]));
      }
      for (const uint32_t run : runs) {
        calls[run] = kNoCall;
        bits[run].reset();
      }
    }
  }

  // What was not paired by its number.
  void look_at_collective_by_alignment(const std::vector<std::optional<Bits>>& bits,
                                       const std::vector<uint32_t>& calls) {
    std::vector<uint32_t> runs;
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      if (calls[run] == kNoCall) continue;
      const auto paired = paired_[run].find(calls[run]);
      if (paired == paired_[run].end()) {
        runs.push_back(run);
      } else {
        is_compared_[run] = paired->second;
      }
    }
    look_at_results_of_collective(bits, calls, runs);
  }

  // Of these runs.
  void look_at_results_of_collective(const std::vector<std::optional<Bits>>& bits, const std::vector<uint32_t>& calls,
                                     const std::vector<uint32_t>& runs) {
    if (runs.empty()) return;
    look_at_inputs(calls, runs);
    const Recording& all = *runs_[runs.front()];
    const std::string_view op = all.string(all.calls[calls[runs.front()]].op);
    if (has_trait(base_name(op), OpTrait::kGivesAllRanksTheSame)) vote(bits, calls, runs, OddFinding::kCollective);
    if (has_launches_) vote_between_launches(bits, calls, runs);
  }

  using GroupOfLaunch = std::pair<std::string_view, uint32_t>;

  // Those of these runs that make a collective together.
  std::map<GroupOfLaunch, std::vector<uint32_t>> runs_by_group(const std::vector<uint32_t>& calls,
                                                               const std::vector<uint32_t>& runs) {
    std::map<GroupOfLaunch, std::vector<uint32_t>> groups;
    for (const uint32_t run : runs) groups[{collective(run, calls[run]).group.name, launches_[run]}].push_back(run);
    return groups;
  }

  bool are_in_order(const std::vector<uint32_t>& runs) const {
    const auto is_behind = [&](uint32_t run, uint32_t next) {
      return number_in(run, "rank", run) >= number_in(next, "rank", next);
    };
    return std::adjacent_find(runs.begin(), runs.end(), is_behind) == runs.end();
  }

  // Other launches have other results of a collective as soon as one of their ranks has other inputs. Where all ranks
  // of the group gave it the same bits, each rank's results must be those of that rank elsewhere. Where they did not,
  // the rank that gave other bits than in most launches is odd; where not all inputs are known, each rank is.
  void vote_between_launches(const std::vector<std::optional<Bits>>& bits, const std::vector<uint32_t>& calls,
                             const std::vector<uint32_t>& runs) {
    using Camps = std::map<std::pair<Hashes, std::string_view>, std::map<Hashes, std::vector<CallOfRun>>>;
    Camps of_inputs, of_rank;  // by all that the ranks gave the collective; of all launches
    std::set<uint32_t> are_known;
    for (const auto& [group, members] : runs_by_group(calls, runs)) {
      const size_t size = std::max<size_t>(collective(members.front(), calls[members.front()]).group.ranks, 1);
      const bool is_whole =
          members.size() == size && are_in_order(members) &&
          std::all_of(members.begin(), members.end(), [&](uint32_t run) { return bits[run] && bits[run]->read_known; });
      Hashes read;
      for (const uint32_t run : members) {
        if (is_whole) read.insert(read.end(), bits[run]->read.begin(), bits[run]->read.end());
      }
      for (const uint32_t run : members) {
        if (!bits[run]) continue;
        Hashes key{collective(run, calls[run]).form, number_in(run, "rank", run)};
        of_rank[{key, bits[run]->scalars}][bits[run]->results].push_back({run, calls[run]});
        if (!is_whole) continue;
        are_known.insert(run);
        key.insert(key.end(), read.begin(), read.end());
        of_inputs[{key, bits[run]->scalars}][bits[run]->results].push_back({run, calls[run]});
      }
    }
    for (const auto& [inputs, results] : of_inputs) {
      if (results.size() >= 2) name_odd(results, OddFinding::kResults, /*decides_tie=*/true);
    }
    for (const auto& [rank, results] : of_rank) {
      note_compared(results);
      const CallOfRun most = largest_camp(results).front();
      for (const auto& [result, members] : results) {
        if (members.front().run == most.run) continue;
        for (const CallOfRun& odd : members) {
          const bool is_known = are_known.count(odd.run) > 0 && are_known.count(most.run) > 0;
          if (is_known && bits[odd.run]->read == bits[most.run]->read) continue;  // another rank's inputs differ
          add(odd.run, odd.call, most.run, most.call, members.size(), results.at(bits[most.run]->results).size(),
              is_known ? OddFinding::kGiven : OddFinding::kResults);
        }
      }
    }
  }

  // --- What a collective brings from an odd rank

  // How many collectives of each group a run makes before a call.
  std::map<std::string, size_t> collectives_before(uint32_t run, size_t end) {
    std::map<std::string, size_t> counts;
    for (uint32_t call = 0; call < end; ++call) {
      if (is_collective(runs_[run]->string(runs_[run]->calls[call].op))) ++counts[collective(run, call).group.name];
    }
    return counts;
  }

  // Ranks of one launch stand beside those that took part in the same collectives; ranks of several beside others.
  // There a difference of a rank reaches the ranks of its launch, which are as they should be.
  void mark_reached() {
    if (!has_launches_) return;
    // Up to the odd call; of these, those that bring nothing of its difference; of the recording.
    std::vector<std::map<std::string, size_t>> done_by_call, sound, in_all;
    for (const OddCall& odd : odd_calls_) {
      const size_t end = size_t{odd.call} + 1;
      done_by_call.push_back(collectives_before(odd.run, end));
      sound.push_back(odd.finding == OddFinding::kGiven ? collectives_before(odd.run, odd.call) : done_by_call.back());
      in_all.push_back(collectives_before(odd.run, runs_[odd.run]->calls.size()));
    }
    const auto reaches = [&](size_t source, size_t other) {
      return launches_[odd_calls_[source].run] == launches_[odd_calls_[other].run] &&
             std::any_of(done_by_call[other].begin(), done_by_call[other].end(), [&](const auto& group) {
               const auto earlier = sound[source].find(group.first);
               const size_t before = earlier == sound[source].end() ? 0 : earlier->second;
               const auto all = in_all[source].find(group.first);
               return group.second > before && all != in_all[source].end() && all->second > before;
             });
    };
    for (size_t other = 0; other < odd_calls_.size(); ++other) {
      for (size_t source = 0; source < odd_calls_.size(); ++source) {
        if (reaches(source, other) && !reaches(other, source)) odd_calls_[other].is_reached = true;
      }
    }
    std::set<uint32_t> with_first;  // launches; ranks of several groups may reach each other in a ring
    for (const OddCall& odd : odd_calls_) {
      if (!odd.is_reached) with_first.insert(launches_[odd.run]);
    }
    for (OddCall& odd : odd_calls_) odd.is_reached = odd.is_reached && with_first.count(launches_[odd.run]) > 0;
  }

  // A call that only moves a tensor to another device reads memory, too; it has no vote.
  void look_at_move(uint32_t call) {
    std::vector<std::optional<Bits>> bits(runs_.size());
    std::vector<uint32_t> calls(runs_.size(), call);
    for (size_t run = 0; run < runs_.size(); ++run) {
      if (run > 0) calls[run] = alignments_[run - 1].move_b_of_a[call];
      if (calls[run] == kNoCall) return;
      bits[run] = bits_of(run, calls[run]);
      if (!bits[run]->read_known) return;
    }
    look_at_memory(bits, calls);
  }

  void count(const std::vector<uint32_t>& calls, const std::vector<std::optional<Bits>>& bits, bool is_drawn) {
    const auto has_call = [](uint32_t call) { return call != kNoCall; };
    const bool is_alone = std::count_if(calls.begin(), calls.end(), has_call) < 2;
    for (size_t run = 0; run < runs_.size(); ++run) {
      if (calls[run] == kNoCall || runs_[run]->calls[calls[run]].outputs == 0) continue;
      const bool has_values = bits[run] && !bits[run]->results.empty();
      ++counts_[static_cast<size_t>(is_alone && !is_compared_[run] ? CallVote::kNoPartner
                                    : !has_values                  ? CallVote::kNoValues
                                    : is_compared_[run]            ? CallVote::kCompared
                                    : is_drawn                     ? CallVote::kDrawn
                                                                   : CallVote::kOwnInputs)];
    }
  }

  // Of the runs behind the first: look_at() counts calls with a partner in the first, and those of the first.
  void count_calls_without_partner() {
    for (size_t run = 1; run < runs_.size(); ++run) {
      const std::vector<RecordedCall>& calls = runs_[run]->calls;
      for (uint32_t call = 0; call < calls.size(); ++call) {
        if (calls[call].outputs == 0 || !alignments_[run - 1].alone_in_b(call)) continue;
        const auto paired = paired_[run].find(call);
        const bool is_compared = paired != paired_[run].end() && paired->second;
        ++counts_[static_cast<size_t>(is_compared ? CallVote::kCompared : CallVote::kNoPartner)];
      }
    }
  }

  // Ranks draw their own numbers and have their own data; runs of the same rank should not.
  bool may_be_of_rank(std::string_view op, const std::vector<uint32_t>& calls) const {
    if (has_trait(base_name(op), OpTrait::kGivesData)) return true;
    for (size_t run = 0; run < runs_.size(); ++run) {
      if (calls[run] != kNoCall && runs_[run]->calls[calls[run]].random != 0) return true;
    }
    return false;
  }

  // Are all recordings of different ranks?
  bool have_ranks() const {
    std::set<size_t> ranks;
    for (uint32_t run = 0; run < runs_.size(); ++run) ranks.insert(number_in(run, "rank", 0));
    return ranks.size() == runs_.size();
  }

  // Runs whose parameters all began with the same bits are replicas, in which they stay the same, whatever the calls
  // that write them are given. The values of the last step are read by no call.
  void look_at_parameters() {
    std::map<uint64_t, std::vector<uint32_t>> groups;  // runs
    for (uint32_t run = 0; run < runs_.size(); ++run) groups[are_shards_ ? begin_[run] : 0].push_back(run);
    for (const auto& [begin, runs] : groups) look_at_parameters_of(runs);
  }

  void look_at_parameters_of(const std::vector<uint32_t>& runs) {
    std::map<std::pair<int64_t, std::string_view>, std::map<uint64_t, std::vector<CallOfRun>>>
        camps;                                             // by value's bits
    std::map<std::string_view, std::set<uint64_t>> begun;  // by name: the bits of the first values
    for (const uint32_t run : runs) {
      for (const auto& [name, hash] : first_parameters(*runs_[run])) begun[name].insert(hash);
      for (const auto& [key, seen] : written_parameters(*runs_[run])) {
        const uint64_t hash = runs_[run]->values[seen.value].hash;
        if (hash != 0) camps[key][hash].push_back({run, seen.call});
      }
    }
    const bool are_replicas =
        std::all_of(begun.begin(), begun.end(), [](const auto& of) { return of.second.size() == 1; });
    if (!are_replicas) return;
    for (const auto& [key, results] : camps) name_odd(results, OddFinding::kParameter, /*decides_tie=*/true);
  }

  // A number for the bits with which all parameters of a run begin: replicas have the same.
  static uint64_t begin_of(const Recording& run) {
    const auto first = first_parameters(run);
    uint64_t key = first.size();
    for (const auto& [name, hash] : first) key = (key ^ hash) * 0x9E3779B97F4A7C15ULL;
    return key;
  }

  // By name: the bits of the first value of each parameter. Not of gradients and inputs, which have names, too.
  static std::map<std::string_view, uint64_t> first_parameters(const Recording& run) {
    std::map<std::string_view, uint64_t> first;
    for (const RecordedUse& use : run.uses) {
      const RecordedValue& value = run.values[use.value];
      if (value.origin == Origin::kParameter) first.emplace(run.string(value.name), value.hash);
    }
    return first;
  }

  bool has_the_calls_of_first(size_t run) const {
    const Alignment& pairs = alignments_[run - 1];
    for (uint32_t call = 0; call < runs_[0]->calls.size(); ++call) {
      if (pairs.alone_in_a(call)) return false;
    }
    for (uint32_t call = 0; call < runs_[run]->calls.size(); ++call) {
      if (pairs.alone_in_b(call)) return false;
    }
    return true;
  }

  // A run in step with others, to whose calls the same was given and which gave the same, can read no other bits than
  // they do in memory that its calls made: something wrote it that no call shows.
  void look_at_memory(const std::vector<std::optional<Bits>>& bits, const std::vector<uint32_t>& calls) {
    std::map<Hashes, std::vector<CallOfRun>> camps;  // by the bits that are read
    for (uint32_t run = 0; run < runs_.size(); ++run) {
      in_step_[run] = in_step_[run] && bits[run];
      if (in_step_[run]) camps[bits[run]->read].push_back({run, calls[run]});
    }
    if (camps.empty()) return;
    const CallOfRun of_most = largest_camp(camps).front();
    for (const auto& [read, members] : camps) {
      for (const CallOfRun& member : members) {
        const Bits &own = *bits[member.run], &others = *bits[of_most.run];
        in_step_[member.run] =
            own.read == others.read && own.results == others.results && own.scalars == others.scalars;
      }
    }
    std::erase_if(camps, [&](const auto& camp) {
      return camp.second.front().run != of_most.run &&
             !std::all_of(camp.second.begin(), camp.second.end(),
                          [&](const CallOfRun& member) { return reads_changed_memory(member, of_most); });
    });
    name_odd(camps, OddFinding::kChangedInput, /*decides_tie=*/true);
  }

  // All inputs that differ are memory that a call made with the same bits in both runs, or that only one of them saw a
  // call write: a write through a view is lost where a kernel gives a copy in its place.
  bool reads_changed_memory(const CallOfRun& call, const CallOfRun& other) const {
    const auto mine = runs_[call.run]->inputs(runs_[call.run]->calls[call.call]);
    const auto theirs = runs_[other.run]->inputs(runs_[other.run]->calls[other.call]);
    if (mine.size() != theirs.size()) return false;
    bool differs = false;
    for (size_t i = 0; i < mine.size(); ++i) {
      const uint32_t value = mine[i].value, other_value = theirs[i].value;
      if (runs_[call.run]->values[value].hash == runs_[other.run]->values[other_value].hash) continue;
      if (!is_written_unseen(call.run, value, other.run, other_value) &&
          !is_written_unseen(other.run, other_value, call.run, value)) {
        const std::optional<uint64_t> earlier = earlier_bits(call.run, value);
        if (!earlier || earlier != earlier_bits(other.run, other_value)) return false;
      }
      differs = true;
    }
    return differs;
  }

  // Written where no call was seen, though a call of another run is seen to write the same.
  bool is_written_unseen(size_t run, uint32_t value, size_t other_run, uint32_t other_value) const {
    return runs_[run]->values[value].origin == Origin::kUnknown &&
           runs_[other_run]->values[other_value].origin == Origin::kCall;
  }

  // The bits that the memory of a value had when a call made it; nullopt: no call did. A result that was not written
  // since has its own.
  std::optional<uint64_t> earlier_bits(size_t run, uint32_t value) const {
    const RecordedUse* const original = made_as(*runs_[run], runs_[run]->values[value]);
    return original ? std::optional(runs_[run]->values[original->value].hash) : std::nullopt;
  }

  // Do each rank's results follow from the inputs of all ranks of its group?
  void look_at_inputs(const std::vector<uint32_t>& calls, const std::vector<uint32_t>& runs) {
    for (const auto& [group, members] : runs_by_group(calls, runs)) {
      if (members.size() != collective(members.front(), calls[members.front()]).group.ranks) continue;
      if (!are_in_order(members)) continue;  // no ranks of the same run
      std::vector<RankCall> ranks;
      for (const uint32_t run : members) {
        ranks.push_back({runs_[run], calls[run], static_cast<int64_t>(number_in(run, "rank", run))});
      }
      const uint32_t form = collective(members.front(), calls[members.front()]).form;
      const auto is_same = [&](uint32_t run) { return collective(run, calls[run]).form == form; };
      if (form == 0 || !std::all_of(members.begin(), members.end(), is_same)) continue;  // not the same collective
      const std::vector<std::optional<bool>> follow = follow_from_inputs(ranks);
      const auto wrong = static_cast<size_t>(std::count(follow.begin(), follow.end(), std::optional(false)));
      for (size_t member = 0; member < members.size(); ++member) {
        const uint32_t run = members[member];
        if (follow[member]) is_compared_[run] = true;
        if (follow[member] != std::optional(false)) continue;
        add(run, calls[run], run, calls[run], wrong, members.size() - wrong, OddFinding::kNotFromInputs);
      }
    }
  }

  size_t number_in(uint32_t run, std::string_view key, size_t otherwise) const {
    const Value* const value = find_key(runs_[run]->header, key);
    const auto* const number = value ? value->get_if<int64_t>() : nullptr;
    return number && *number >= 0 ? static_cast<size_t>(*number) : otherwise;
  }

  // Where no majority is right, some run is wrong: the inputs of all of them are the same, and it was not drawn,
  // nor is it data of the program.
  bool decides_tie(const std::vector<std::optional<Bits>>& bits,
                   const std::map<Hashes, std::vector<CallOfRun>>& results, OddFinding finding) const {
    if (finding == OddFinding::kCollective) return true;
    if (finding == OddFinding::kParameter) return false;  // they may be shards
    const CallOfRun first = results.begin()->second.front();
    const Recording& all = *runs_[first.run];
    const RecordedCall& call = all.calls[first.call];
    if (bits[first.run]->read.empty() || has_trait(base_name(all.string(call.op)), OpTrait::kGivesData)) return false;
    return std::all_of(results.begin(), results.end(), [&](const auto& camp) {
      return std::all_of(camp.second.begin(), camp.second.end(),
                         [&](const CallOfRun& call) { return runs_[call.run]->calls[call.call].random == 0; });
    });
  }

  // Do most runs begin with the same parameters? Else they hold shards, as tensor- and pipeline-parallel ranks do, and
  // each is compared with those that began as it did.
  bool hold_shards() const {
    std::map<uint64_t, size_t> sizes;
    for (const uint64_t begin : begin_) ++sizes[begin];
    std::vector<size_t> counts;
    for (const auto& [begin, count] : sizes) counts.push_back(count);
    std::sort(counts.rbegin(), counts.rend());
    return counts.size() > 1 && counts[1] > 1 && counts[0] < 2 * counts[1];
  }

  // Among runs that were given the same those are odd whose results fewer have than other ones.
  void vote(const std::vector<std::optional<Bits>>& bits, const std::vector<uint32_t>& calls,
            const std::vector<uint32_t>& runs, OddFinding finding) {
    const auto has_parameters = [](const std::optional<Bits>& of_run) { return of_run && !of_run->parameters.empty(); };
    if (finding == OddFinding::kParameter && std::none_of(bits.begin(), bits.end(), has_parameters)) return;
    std::map<std::pair<Hashes, std::string_view>, std::map<Hashes, std::vector<CallOfRun>>> camps;
    const bool by_begin = finding == OddFinding::kParameter && are_shards_;
    for (const uint32_t run : runs) {
      if (!bits[run]) continue;
      const bool by_input = finding == OddFinding::kResults, by_group = finding == OddFinding::kCollective;
      const Hashes begin = by_begin ? Hashes{begin_[run]} : Hashes();
      const Hashes form = by_group ? Hashes{collective(run, calls[run]).form, launches_[run]} : begin;
      camps[{by_input ? bits[run]->read : form, by_input || by_group ? bits[run]->scalars : ""}]
           [finding == OddFinding::kParameter ? bits[run]->parameters : bits[run]->results]
               .push_back({run, calls[run]});
    }
    for (const auto& [inputs, results] : camps) {
      if (finding != OddFinding::kParameter) note_compared(results);
      if (results.size() >= 2) name_odd(results, finding, decides_tie(bits, results, finding));
    }
  }

  // Runs whose results are compared: with another's.
  void note_compared(const std::map<Hashes, std::vector<CallOfRun>>& results) {
    const bool has_others = results.size() > 1 || results.begin()->second.size() > 1;
    if (!has_others) return;
    for (const auto& [bits, members] : results) {
      for (const CallOfRun& member : members) is_compared_[member.run] = true;
    }
  }

  // Of camps of as many runs that with the first run. There is a camp.
  template <class Key>
  static const std::vector<CallOfRun>& largest_camp(const std::map<Key, std::vector<CallOfRun>>& camps) {
    return std::max_element(camps.begin(), camps.end(),
                            [](const auto& camp, const auto& other) {
                              const size_t size = camp.second.size(), other_size = other.second.size();
                              return size < other_size ||
                                     (size == other_size && camp.second.front().run > other.second.front().run);
                            })
        ->second;
  }

  // Of results that should be the same those are odd that fewer runs have than the most frequent; as many: where
  // that decides.
  template <class Result>
  void name_odd(const std::map<Result, std::vector<CallOfRun>>& results, OddFinding finding, bool decides_tie) {
    if (results.empty()) return;
    const std::vector<CallOfRun>& most = largest_camp(results);
    for (const auto& [result, members] : results) {
      if (&members == &most || (members.size() == most.size() && !decides_tie)) continue;
      for (const CallOfRun& odd : members) {
        add(odd.run, odd.call, most.front().run, most.front().call, members.size(), most.size(), finding);
      }
    }
  }

  void add(uint32_t run, uint32_t call, uint32_t majority, uint32_t majority_call, size_t like_it, size_t others,
           OddFinding finding) {
    const auto known =
        std::find_if(odd_calls_.begin(), odd_calls_.end(), [&](const OddCall& odd) { return odd.run == run; });
    if (known != odd_calls_.end() && known->call <= call) return;
    OddCall odd{run,    call, majority, majority_call, static_cast<uint32_t>(like_it), static_cast<uint32_t>(others),
                finding};
    const Recording& all = *runs_[run];
    for (uint32_t i = call; i < all.calls.size() && odd.collective == kNoCall; ++i) {
      if (is_collective(all.string(all.calls[i].op))) odd.collective = i;
    }
    if (known == odd_calls_.end()) {
      odd_calls_.push_back(odd);
    } else {
      *known = odd;
    }
  }

  const std::vector<const Recording*>& runs_;
  std::vector<uint32_t> launches_;  // by run
  std::vector<uint32_t> all_;       // their numbers
  std::vector<std::vector<bool>> unwritten_;
  std::vector<uint64_t> begin_;  // by run
  std::vector<CallsById> forward_;
  bool are_shards_ = false, are_ranks_ = false, has_launches_ = false;
  std::vector<Alignment> alignments_;  // of run 0 with each other run
  std::vector<OddCall> odd_calls_;
  std::vector<bool> in_step_;      // by run: all its calls so far had the bits of others that are in step
  std::vector<bool> is_compared_;  // by run, of the call that is looked at
  std::vector<std::unordered_map<uint32_t, bool>> paired_;  // by run: collectives by their number; compared?
  std::vector<std::map<std::vector<uint32_t>, CollectiveCall>> collectives_;  // by run; by operator, scalars, shapes
  std::unordered_map<std::string, uint32_t> forms_;
  decltype(OddCalls::calls) counts_{};
};

}  // namespace

OddCalls find_odd_calls(const std::vector<const Recording*>& runs, std::vector<uint32_t> launches) {
  if (runs.size() < 2) throw Error("a single run has nothing to be compared with");
  if (!launches.empty() && launches.size() != runs.size()) throw Error("each run needs the number of its launch");
  return OddFinder(runs, std::move(launches)).find();
}

}  // namespace op_tools
