#include "run_op_from_data/shrink.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "catch.h"
#include "run_op_from_data/call_edit.h"
#include "temporary_folder.h"

using namespace op_tools;
using op_tools::replay::argument_tensors;
using op_tools::replay::Attempt;
using op_tools::replay::elements_of;
using op_tools::replay::fitted_gradient;
using op_tools::replay::shrink;
using op_tools::replay::Shrunk;

namespace {

SavedCall call_of(Values args, std::vector<std::pair<Value, Value>> kwargs = {}) {
  SavedCall call;
  call.name = "torch.add";
  call.args = make_tuple(std::move(args));
  call.kwargs = make_dict(std::move(kwargs));
  call.has_meta = true;
  for (const at::Tensor& tensor : argument_tensors(call)) call.meta.inputs.push_back(TensorMeta::of(tensor));
  return call;
}

const at::Tensor& first(const SavedCall& call) {
  return *(*sequence_items(call.args))[0].get_if<at::Tensor>();
}

// Shrinks with a rule that says which calls fail; counts how often it was asked.
struct Asked {
  size_t count = 0;
  std::vector<std::string> steps;
  Shrunk run(SavedCall call, const std::function<Attempt(const SavedCall&)>& rule, size_t attempts = 200) {
    return shrink(
        std::move(call),
        [&](SavedCall& candidate, const std::string& step) {
          ++count;
          steps.push_back(step);
          return rule(candidate);
        },
        attempts);
  }
};

Attempt fails_if(bool fails) {
  return fails ? Attempt::kFails : Attempt::kPasses;
}

}  // namespace

TEST_CASE("shrink finds the size from which on a call fails", "[shrink]") {
  Asked asked;
  const Shrunk shrunk = asked.run(call_of({at::randn({4, 1000})}), [](const SavedCall& call) {
    return fails_if(first(call).dim() == 2 && first(call).size(1) >= 257);
  });
  CHECK(first(shrunk.call).sizes() == at::IntArrayRef({1, 257}));
  REQUIRE(shrunk.limits.size() == 1);
  CHECK(shrunk.limits[0].fails == 257);
  CHECK(shrunk.limits[0].passes == 256);
  CHECK(shrunk.limits[0].size.find("dimension 1 of input 0") != std::string::npos);
  CHECK(asked.count < 60);
}

TEST_CASE("shrink makes equal sizes smaller together", "[shrink]") {
  Asked asked;
  const auto agree = [](const SavedCall& call) {
    const auto tensors = argument_tensors(call);
    if (tensors.size() != 2 || tensors[0].dim() != 2 || tensors[1].dim() != 2) return Attempt::kInvalid;
    return tensors[0].size(1) == tensors[1].size(0) ? Attempt::kFails : Attempt::kInvalid;
  };
  const Shrunk shrunk = asked.run(call_of({at::randn({8, 32}), at::randn({32, 16})}), agree);
  CHECK(elements_of(shrunk.call) == 2);
  CHECK(shrunk.limits.empty());  // nothing smaller passes: it cannot be run
}

TEST_CASE("shrink keeps the end of a dimension where the failure is there", "[shrink]") {
  at::Tensor tensor = at::zeros({100});
  tensor[70] = 1;
  Asked asked;
  const Shrunk shrunk = asked.run(call_of({tensor}), [](const SavedCall& call) {
    return fails_if(first(call).numel() > 0 && first(call).max().item<float>() > 0);
  });
  CHECK(first(shrunk.call).numel() == 1);
}

TEST_CASE("shrink leaves out keywords, arguments and their facts by index", "[shrink]") {
  SavedCall call = call_of({at::randn({2}), at::randn({3}), 7}, {{"alpha", 2.0}, {"out", at::randn({5})}});
  call.meta.inputs[2].requires_grad = true;
  call.judged = make_dict({{"written_inputs", make_list({false, false, true})}});
  Asked asked;
  const Shrunk shrunk = asked.run(std::move(call), [](const SavedCall& candidate) {
    return fails_if(find_key(candidate.kwargs, "out") && sequence_items(candidate.args)->size() >= 1);
  });
  CHECK(sequence_items(shrunk.call.args)->size() == 1);
  CHECK(find_key(shrunk.call.kwargs, "alpha") == nullptr);
  REQUIRE(shrunk.call.meta.inputs.size() == 2);
  CHECK(shrunk.call.meta.inputs[1].requires_grad);
  const Values& written = *sequence_items(*find_key(shrunk.call.judged, "written_inputs"));
  REQUIRE(written.size() == 2);
  CHECK(*written[1].get_if<bool>());
}

TEST_CASE("shrink gives tensors memory of their own unless the failure needs their shared memory", "[shrink]") {
  const at::Tensor memory = at::randn({4, 6});
  const auto shared = [&] { return call_of({memory.t(), memory.select(0, 1)}); };
  Asked asked;
  const auto both = [](const SavedCall& call) { return fails_if(argument_tensors(call).size() == 2); };
  Shrunk shrunk = asked.run(shared(), both);
  CHECK(argument_tensors(shrunk.call)[0].is_contiguous());
  CHECK(!argument_tensors(shrunk.call)[0].is_alias_of(argument_tensors(shrunk.call)[1]));
  shrunk = asked.run(shared(), [](const SavedCall& call) {
    const auto tensors = argument_tensors(call);
    return fails_if(tensors.size() == 2 && tensors[0].is_alias_of(tensors[1]) && !tensors[0].is_contiguous());
  });
  CHECK(argument_tensors(shrunk.call)[0].is_alias_of(argument_tensors(shrunk.call)[1]));
}

TEST_CASE("shrink keeps a tensor in several places the same tensor, and the recorded call's arguments with it",
          "[shrink]") {
  const at::Tensor tensor = at::randn({9});
  SavedCall call = call_of({tensor, tensor});
  call.aten = make_tuple({"aten::add.Tensor", make_tuple({tensor, tensor, 1})});
  Asked asked;
  const Shrunk shrunk =
      asked.run(std::move(call), [](const SavedCall& candidate) { return fails_if(!candidate.aten.is<None>()); });
  const auto tensors = argument_tensors(shrunk.call);
  CHECK(tensors[0].is_same(tensors[1]));
  const Values& recorded = *sequence_items((*sequence_items(shrunk.call.aten))[1]);
  CHECK(recorded[0].get_if<at::Tensor>()->is_same(tensors[0]));
  CHECK(tensors[0].numel() == 1);
}

TEST_CASE("shrink tries sizes and indices among the arguments where sizes alone cannot be run", "[shrink]") {
  Asked asked;
  const at::Tensor indices = at::arange(0, 10, at::kLong);
  const Shrunk shrunk = asked.run(call_of({at::randn({10, 3}), indices, 10}), [](const SavedCall& call) {
    const auto& items = *sequence_items(call.args);
    if (items.size() != 3 || first(call).dim() != 2) return Attempt::kInvalid;
    const auto rows = first(call).size(0);
    const auto* number = items[2].get_if<int64_t>();
    const auto* index = items[1].get_if<at::Tensor>();
    const bool fits = *number == rows && (index->numel() == 0 || index->max().item<int64_t>() < rows);
    return fits ? Attempt::kFails : Attempt::kInvalid;
  });
  CHECK(first(shrunk.call).size(0) == 1);
  CHECK(*(*sequence_items(shrunk.call.args))[2].get_if<int64_t>() == 1);
}

TEST_CASE("shrink drops backward, grad mode and dimensions, and takes simple values", "[shrink]") {
  SavedCall call = call_of({at::randn({1, 4, 1}).requires_grad_()});
  call.backward.push_back({make_list({at::randn({1, 4, 1})}), make_list({Value()})});
  Asked asked;
  const Shrunk shrunk = asked.run(std::move(call), [](const SavedCall&) { return Attempt::kFails; });
  CHECK(shrunk.call.backward.empty());
  CHECK(!first(shrunk.call).requires_grad());
  CHECK(first(shrunk.call).dim() == 0);
  CHECK(at::equal(first(shrunk.call), at::ones({})));
}

TEST_CASE("a dropped backward stays where the failure needs it, with requires_grad", "[shrink]") {
  SavedCall call = call_of({at::randn({1, 4}).requires_grad_()});
  call.backward.push_back({make_list({at::randn({1, 4})}), make_list({Value()})});
  Asked asked;
  const Shrunk shrunk =
      asked.run(std::move(call), [](const SavedCall& candidate) { return fails_if(!candidate.backward.empty()); });
  CHECK(shrunk.call.backward.size() == 1);
  CHECK(first(shrunk.call).requires_grad());
  CHECK(first(shrunk.call).numel() == 1);
}

TEST_CASE("shrink ends when its attempts are used up, and nothing smaller leaves the call as it was", "[shrink]") {
  Asked few;
  few.run(
      call_of({at::randn({64, 64})}), [](const SavedCall&) { return Attempt::kFails; }, 3);
  CHECK(few.count == 3);
  Asked asked;
  const at::Tensor tensor = at::randn({5});
  const Shrunk shrunk = asked.run(call_of({tensor}), [](const SavedCall&) { return Attempt::kInvalid; });
  CHECK(first(shrunk.call).is_same(tensor));
  CHECK(shrunk.steps.empty());
}

TEST_CASE("a gradient is fitted to the sizes that a result has now", "[shrink]") {
  const at::Tensor gradient = at::randn({4, 6});
  CHECK(at::equal(fitted_gradient(gradient, at::ones({2, 3})), gradient.narrow(0, 0, 2).narrow(1, 0, 3)));
  CHECK(fitted_gradient(gradient, at::ones({4, 6})).is_same(gradient));
  CHECK(at::equal(fitted_gradient(gradient, at::ones({9})), at::ones({9})));
  CHECK(!fitted_gradient({}, at::ones({2})).defined());
}

TEST_CASE("a smaller call is written and read as any saved call", "[shrink]") {
  const test::TemporaryFolder folder;
  Asked asked;
  const Shrunk shrunk = asked.run(call_of({at::randn({3, 4}), 2.5}), [](const SavedCall& call) {
    return fails_if(first(call).dim() == 2 && first(call).size(1) > 2 && sequence_items(call.args)->size() == 2);
  });
  const std::string written = write_call(*CallStore::in_folder(folder.path()), shrunk.call);
  const SavedCall again = read_call(*open_call(written));
  CHECK(at::equal(first(again), first(shrunk.call)));
  CHECK(again.meta.inputs.at(0).shape == first(shrunk.call).sizes());
  CHECK(again.cut_off.empty());
}
