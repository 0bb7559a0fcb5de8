#include "base/op_filter.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "catch.h"

using op_tools::OpFilter;

namespace {

bool only_admits(std::string_view only, std::string_view name) {
  return OpFilter(only, "", "ops=", "skip=").admits(name);
}

std::string error_of(std::string_view only, std::string_view skip = "") {
  try {
    OpFilter(only, skip, "OP_CAPTURE_LIST", "OP_CAPTURE_DISABLE_LIST");
  } catch (const op_tools::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("An empty filter admits every name and names none", "[filter]") {
  const OpFilter filter("", " , ,, ", "ops=", "skip=");
  CHECK(filter.admits("torch.Tensor.add"));
  CHECK(filter.admits("aten::add.Tensor"));
  CHECK_FALSE(filter.names("torch.Tensor.add"));
  CHECK_FALSE(filter.has_only());
  CHECK(filter.unmatched_items().empty());
}

TEST_CASE("An item must match the whole name", "[filter]") {
  CHECK(only_admits("torch.Tensor.add", "torch.Tensor.add"));
  CHECK_FALSE(only_admits("torch.Tensor.add", "torch.Tensor.add_"));
  CHECK_FALSE(only_admits("torch.Tensor.add", "torch.Tensor.addmm"));
  CHECK_FALSE(only_admits("add", "torch.Tensor.add"));
  CHECK_FALSE(only_admits("torch.add", "torch.ad"));
  CHECK(only_admits("torch.nn.functional.*", "torch.nn.functional.linear"));
  CHECK(only_admits(".*norm", "torch.nn.functional.layer_norm"));
  CHECK_FALSE(only_admits(".*norm", "torch.nn.functional.normalize"));
  CHECK(only_admits("add|mul", "aten::mul"));
  CHECK_FALSE(only_admits("add|mul", "aten::mul_"));
}

TEST_CASE("The fast path for names with dots and '.*' agrees with regular expressions", "[filter]") {
  // "(?:...)" takes the same item through std::regex.
  const std::vector<std::string> items = {"",    ".",       ".*",   "..*",     "a",      "a.",  "a.*",
                                          ".*a", ".*a.*",   "a.*b", "a.*b.*c", ".*.*",   "a.b", "a\\.b",
                                          "\\.", ".*\\..*", ".*ab", "aa.*a",   ".*aba.*"};
  const std::vector<std::string> names = {"a",   "b",     "ab",   "ba",    "aa",    "aaa",   "aaaa",
                                          "a.b", "axb",   "abc",  "aXbYc", "abab",  "ababa", "aabab",
                                          ".",   "xabay", "a..b", "bcab",  "abcab", "x"};
  for (const auto& item : items) {
    if (item.empty()) continue;
    for (const auto& name : names) {
      INFO("item '" << item << "' name '" << name << "'");
      CHECK(only_admits(item, name) == only_admits("(?:" + item + ")", name));
    }
  }
}

TEST_CASE("An aten name matches with and without namespace and overload", "[filter]") {
  const auto item =
      GENERATE("aten::add.Tensor", "add.Tensor", "aten::add", "add", ".*.Tensor", ".*\\.Tensor", "aten::.*", "a[d]d");
  INFO(item);
  CHECK(only_admits(item, "aten::add.Tensor"));
  CHECK_FALSE(only_admits(item, "torch.Tensor.add_"));
  CHECK_FALSE(only_admits("add", "aten::add_.Tensor"));
  CHECK_FALSE(only_admits("add.Scalar", "aten::add.Tensor"));
  CHECK(only_admits("relu", "aten::relu"));
  CHECK(only_admits("mylib::op", "mylib::op"));
}

TEST_CASE("The skip list is taken off the other", "[filter]") {
  const OpFilter filter("torch.Tensor.*, torch.nn.functional.linear", " .*_ ,torch.Tensor.add", "ops=", "skip=");
  CHECK(filter.has_only());
  CHECK(filter.admits("torch.Tensor.mul"));
  CHECK(filter.admits("torch.nn.functional.linear"));
  CHECK_FALSE(filter.admits("torch.Tensor.mul_"));
  CHECK_FALSE(filter.admits("torch.Tensor.add"));
  CHECK_FALSE(filter.admits("torch.relu"));
  CHECK(filter.names("torch.Tensor.add"));
  CHECK_FALSE(filter.names("torch.relu"));

  const OpFilter skip_only("", "add", "ops=", "skip=");
  CHECK_FALSE(skip_only.admits("aten::add.Tensor"));
  CHECK(skip_only.admits("aten::mul.Tensor"));
}

TEST_CASE("A comma inside brackets, braces or parentheses does not separate", "[filter]") {
  const OpFilter filter("a{1,2}b, x(y,z)?, [,(]q, w\\,v", "", "ops=", "skip=");
  for (const auto* name : {"ab", "aab", "x", "xy,z", ",q", "(q", "w,v"}) {
    INFO(name);
    CHECK(filter.admits(name));
  }
  CHECK_FALSE(filter.admits("aaab"));
  CHECK(filter.unmatched_items().size() == 4);
}

TEST_CASE("An item that is no valid expression is an error that names item and source", "[filter]") {
  using Catch::Contains;
  const auto item = GENERATE("torch.Tensor.(sort", "[a-", "*add", "a{2", "a)", "(a)\\1", "x\\");
  const std::string only = error_of(std::string("torch.add, ") + item);
  CHECK_THAT(only, Contains("OP_CAPTURE_LIST: '" + std::string(item) + "' is no valid regular expression"));
  CHECK_THAT(error_of("", item), Contains("OP_CAPTURE_DISABLE_LIST: '" + std::string(item)));
}

TEST_CASE("Items that would exhaust the stack or the time are refused or harmless", "[filter]") {
  using Catch::Contains;
  CHECK_THAT(error_of("(" + std::string(300, 'a') + ")"), Contains("longer than 256"));
  CHECK_THAT(error_of("(a?){33}"), Contains("more than 32 times"));
  CHECK_THAT(error_of("((a?){8}){8}"), Contains("more than 32 times"));
  CHECK_THAT(error_of("a{99999999999999999999999}"), Contains("more than 32 times"));

  // The largest expression that is let through, on a thread with a small stack's worth of names.
  std::string largest = "(";
  while (largest.size() < 240) largest += "a?";
  const OpFilter filter(largest + "){32}, (a*)*b, (x+x+)+y", "", "ops=", "skip=");
  CHECK_FALSE(filter.admits(std::string(5000, 'a')));
  CHECK_FALSE(filter.admits(std::string(5000, 'x')));
  CHECK(filter.admits(std::string(1000, 'a') + "b"));
  const OpFilter nested(std::string(100, '(') + "a" + std::string(100, ')'), "", "ops=", "skip=");
  CHECK(nested.admits("a"));
  CHECK(only_admits(std::string(10000, 'a'), std::string(10000, 'a')));  // plain items have no limit
}

namespace {
std::vector<std::string> described(const OpFilter& filter) {
  std::vector<std::string> items;
  for (const OpFilter::Unmatched& item : filter.unmatched_items()) items.push_back(item.described);
  return items;
}
}  // namespace

TEST_CASE("Items that matched nothing are named with their source", "[filter]") {
  const OpFilter filter("torch.Tensor.sort, torch.Tensor.srot", "torch.ad, .*mul", "OP_CAPTURE_LIST", "skip=");
  CHECK(filter.unmatched_items().size() == 4);
  filter.saw("torch.Tensor.sort");
  filter.saw("torch.Tensor.mul");  // not admitted, seen all the same
  filter.saw("torch.Tensor.add");
  CHECK(described(filter) == std::vector<std::string>{"OP_CAPTURE_LIST: 'torch.Tensor.srot'", "skip=: 'torch.ad'"});
}

TEST_CASE("Names may be seen from many threads at once", "[filter]") {
  std::string list;
  for (int i = 0; i < 50; ++i) list += "op" + std::to_string(i) + ",";
  const OpFilter filter(list + "never", "", "ops=", "skip=");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) filter.saw("op" + std::to_string(i));
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(described(filter) == std::vector<std::string>{"ops=: 'never'"});
}

TEST_CASE("A function matches by each of its names", "[filter]") {
  op_tools::add_other_names(
      {{"torch.functional.shuffled", "torch.shuffled"}, {"torch._C._shuffled", "torch.s.shuffled"}});
  const OpFilter filter("torch.shuffled, torch\\.s\\..*", "", "ops=", "skip=");
  CHECK(filter.admits("torch.functional.shuffled"));
  CHECK(filter.admits("torch._C._shuffled"));
  CHECK_FALSE(filter.admits("torch.functional.shuffled_"));
  filter.saw("torch.functional.shuffled");
  filter.saw("torch._C._shuffled");
  CHECK(filter.unmatched_items().empty());
}

TEST_CASE("A pattern of a shell is answered with the expression that it means", "[filter]") {
  CHECK_THAT(error_of("*mul"), Catch::Contains("did you mean '.*mul'?"));
  CHECK_THAT(error_of("*"), Catch::Contains("did you mean '.*'?"));
  CHECK_THAT(error_of("("), !Catch::Contains("did you mean"));
}
