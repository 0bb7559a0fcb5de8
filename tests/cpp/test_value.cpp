#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>

#include <limits>

#include "catch.h"
#include "tensor/value.h"

namespace op_tools {
namespace {

Value slice(Values parts) {
  return Slice{std::make_shared<const Values>(std::move(parts))};
}

TEST_CASE("Tensors are visited in the order in which a reader meets them", "[value]") {
  const auto a = at::arange(1), b = at::arange(2), c = at::arange(3), d = at::arange(4);
  const Value tree = make_tuple({make_list({a, 1}), make_dict({{"z", b}, {"a", slice({None{}, c, 1})}}),
                                 NamedTuple{std::make_shared<const Values>(Values{d}), "t"}, a});
  const auto tensors = flatten_tensors(tree);
  REQUIRE(tensors.size() == 5);
  const at::Tensor expected[] = {a, b, c, d, a};
  for (size_t i = 0; i < 5; ++i) CHECK(tensors[i].is_same(expected[i]));
}

TEST_CASE("A generator's state and a dict's keys are no tensors of the call", "[value]") {
  const auto state = at::arange(4, at::kByte);
  CHECK(flatten_tensors(make_tuple({Generator{at::kCPU, state}})).empty());
  CHECK(flatten_tensors(make_dict({{state, 1}})).empty());
}

TEST_CASE("An undefined tensor is None", "[value]") {
  CHECK(Value(at::Tensor()).is<None>());
}

TEST_CASE("map_tensors replaces tensors and shares every subtree without tensors", "[value]") {
  const auto a = at::arange(3);
  const Value plain = make_list({1, "x"});
  const Value tree = make_tuple({plain, make_dict({{"k", make_list({a})}}), slice({a, None{}, None{}}),
                                 NamedTuple{std::make_shared<const Values>(Values{a}), "named"}});
  const Value mapped = map_tensors(tree, [](const at::Tensor& t) { return Value(t.numel()); });
  const auto& items = *sequence_items(mapped);
  CHECK(items[0].get_if<List>()->items == plain.get_if<List>()->items);
  CHECK(*(*sequence_items(*find_key(items[1], "k")))[0].get_if<int64_t>() == 3);
  CHECK(*(*items[2].get_if<Slice>()->items)[0].get_if<int64_t>() == 3);
  CHECK(items[3].get_if<NamedTuple>()->type == "named");
  CHECK(flatten_tensors(tree).size() == 3);  // the original is as it was

  const Value untouched = map_tensors(plain, [](const at::Tensor&) { return Value(); });
  CHECK(untouched.get_if<List>()->items == plain.get_if<List>()->items);
}

TEST_CASE("find_key and sequence_items answer nullptr for other kinds", "[value]") {
  const Value dict = make_dict({{1, 2}, {"a", 3}});
  CHECK(*find_key(dict, "a")->get_if<int64_t>() == 3);
  CHECK(find_key(dict, "b") == nullptr);
  CHECK(find_key(make_list({}), "a") == nullptr);
  CHECK(sequence_items(dict) == nullptr);
  CHECK(sequence_items(slice({1, 2, 3})) == nullptr);
  CHECK(sequence_items(Set{std::make_shared<const Values>(Values{1})})->size() == 1);
}

TEST_CASE("describe shows a tensor as the users' documents do", "[value]") {
  const auto t = at::arange(6, at::kFloat).view({2, 3});
  const std::string data = std::to_string(reinterpret_cast<uintptr_t>(t.const_data_ptr()));
  CHECK(describe(t) ==
        "{'shape': torch.Size([2, 3]), 'stride': (3, 1), 'numel': 6, 'dtype': 'torch.float32', "
        "'device': 'cpu', "
        "'requires_grad': False, 'layout': 'torch.strided', 'data': " +
            data + "}");
  const std::string sparse = describe(at::eye(2).to_sparse());
  CHECK(sparse.find("'layout': 'torch.sparse_coo'") != std::string::npos);
  CHECK(sparse.find("data") == std::string::npos);
}

TEST_CASE("describe writes values as Python would", "[value]") {
  CHECK(describe(make_dict({{"args", make_tuple({1, true, None{}})}, {"kwargs", make_dict({})}})) ==
        "{'args': (1, True, None), 'kwargs': {}}");
  CHECK(describe(make_tuple({1})) == "(1,)");
  CHECK(describe(make_list({0.5, 100000.0, 1e-5, 1e16, -std::numeric_limits<double>::infinity()})) ==
        "[0.5, 100000.0, 1e-05, 1e+16, -inf]");
  CHECK(describe(make_list({at::kBFloat16, c10::Device("cuda:1"), at::kSparseCsr, at::MemoryFormat::ChannelsLast,
                            Size{{2, 3}}, Ellipsis{}})) ==
        "[torch.bfloat16, device('cuda:1'), torch.sparse_csr, torch.channels_last, torch.Size([2, "
        "3]), ...]");
  CHECK(describe(slice({1, None{}, 2})) == "slice(1, None, 2)");
}

TEST_CASE("describe stays a short line", "[value]") {
  CHECK(describe(make_list(Values(100, Value(7)))).size() < 150);
  CHECK(describe(std::string(10000, 'x')).size() < 250);
  CHECK(describe("a\nb\x1b[2J") == "'a\\nb?[2J'");
  Value deep = 1;
  for (int i = 0; i < 1000; ++i) deep = make_list({deep});
  CHECK(describe(deep).size() < 100);
}

TEST_CASE("Names of dtypes, layouts, formats and schemes read back", "[value]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kComplexHalf, at::kFloat8_e4m3fn, at::kUInt16, at::kBool})
    CHECK(dtype_from_name(torch_name(dtype)) == dtype);
  CHECK(torch_name(at::kFloat) == "torch.float32");
  CHECK(dtype_from_name("half") == at::kHalf);
  CHECK(layout_from_name(torch_name(at::kSparseBsr)) == at::kSparseBsr);
  CHECK(memory_format_from_name("channels_last_3d") == at::MemoryFormat::ChannelsLast3d);
  CHECK(qscheme_from_name(torch_name(at::kPerChannelAffine)) == at::kPerChannelAffine);
  CHECK_FALSE(dtype_from_name("torch.float33"));
  CHECK_FALSE(layout_from_name(""));
  CHECK_FALSE(memory_format_from_name("torch."));
  CHECK_FALSE(qscheme_from_name("unknown"));
}

}  // namespace
}  // namespace op_tools
