// Tables: as text, as CSV and as JSON lines; and the folder that they are in.
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "catch.h"
#include "report/packed_rows.h"
#include "report/row_file.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test

namespace {

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("a text table is aligned: texts left, numbers right", "[tables]") {
  const std::vector<TableColumn> columns = {{"op"}, {"calls", true}};
  CHECK(text_table(columns, {{"aten::mm", "7"}, {"aten::add.Tensor", "1200"}}) ==
        "op                calls\n"
        "aten::mm              7\n"
        "aten::add.Tensor   1200");
  CHECK(text_table(columns, {}) == "op  calls");
  CHECK(text_table({}, {}).empty());
}

TEST_CASE("a table that is too wide has the middle of its longest text cut", "[tables]") {
  const std::vector<TableColumn> columns = {{"op"}, {"calls", true}};
  const std::string name = "torch.nn.functional.scaled_dot_product_attention";
  const std::string table = text_table(columns, {{name, "3"}}, 40);
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 40);
  CHECK(table.find("torch.nn") != std::string::npos);
  CHECK(table.find("...") != std::string::npos);
  CHECK(table.find("attention      3") != std::string::npos);
}

TEST_CASE("several wide columns share the room", "[tables]") {
  const std::vector<TableColumn> columns = {{"inputs"}, {"outputs"}, {"calls", true}};
  const std::string shape = "float32[2, 12, 32], float32[2, 12, 1]";
  const std::string table = text_table(columns, {{shape, std::string(400, 'x'), "7"}, {"a", "b", "8"}}, 100);
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  CHECK(table.find(shape) != std::string::npos);  // the column that is far wider gives way
}

TEST_CASE("amounts of bytes read well", "[tables]") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(999) == "999 B");
  CHECK(bytes_text(1000) == "1.0 KB");
  CHECK(bytes_text(12'345'678'901) == "12.3 GB");
}

TEST_CASE("a CSV file has titles, quotes cells that need it, and leaves absent cells empty", "[tables]") {
  const test::TemporaryFolder folder;
  RowFile file(folder.path() + "/rows.csv", {"name", "shape", "error", "note"});
  file.add(make_dict({{"name", "a,b"}, {"shape", make_list({2, 3})}, {"error", 0.1}}));
  file.add(make_dict(
      {{"name", "say \"no\"\nplease"}, {"error", std::numeric_limits<double>::infinity()}, {"note", Value()}}));
  file.flush();
  CHECK(content_of(file.path()) ==
        "name,shape,error,note\n"
        "\"a,b\",\"[2,3]\",0.1,\n"
        "\"say \"\"no\"\"\nplease\",,inf,\n");
}

TEST_CASE("JSON lines keep types, and order, and are valid whatever is in them", "[tables]") {
  const test::TemporaryFolder folder;
  RowFile file(folder.path() + "/rows.jsonl");
  file.add(make_dict({{"op", "mm"}, {"calls", 3}, {"ok", true}, {"none", Value()}, {"size", Size{{2, 3}}}}));
  file.add(make_dict({{"nan", std::numeric_limits<double>::quiet_NaN()}, {"bytes", std::string("\xff")}}));
  file.flush();
  CHECK(content_of(file.path()) ==
        "{\"op\":\"mm\",\"calls\":3,\"ok\":true,\"none\":null,\"size\":[2,3]}\n"
        "{\"nan\":\"nan\",\"bytes\":\"\xef\xbf\xbd\"}\n");
}

TEST_CASE("the rows of a folder's files are known once they are flushed", "[tables]") {
  const test::TemporaryFolder folder;
  using Counts = std::map<std::string, uint64_t>;
  RowFile csv(folder.path() + "/a.csv", {"op"}), lines(folder.path() + "/b.jsonl");
  for (int i = 0; i < 3; ++i) {
    csv.add(make_dict({{"op", "mm"}}));
    lines.add(make_dict({{"op", "mm"}}));
  }
  CHECK(take_row_counts(folder.path()).empty());
  csv.flush();
  lines.flush();
  CHECK(take_row_counts(folder.path() + "/other").empty());
  CHECK(take_row_counts(folder.path()) == Counts{{"a.csv", 3}, {"b.jsonl", 3}});
  CHECK(take_row_counts(folder.path()).empty());
  lines.add(make_dict({{"op", "mm"}}));
  lines.flush();
  CHECK(take_row_counts(folder.path()) == Counts{{"b.jsonl", 4}});
}

TEST_CASE("rows put together cell by cell are those of a Dict", "[tables]") {
  const test::TemporaryFolder folder;
  const std::vector<std::string> columns{"name", "id", "limit", "shape", "ok", "note"};
  const std::vector<int64_t> shape{2, 3};
  const auto put = [&](RowSink& row, bool all) {
    row.put("name", "say \"no\"");
    if (all) row.put("id", int64_t{7});
    row.put("limit", std::numeric_limits<double>::infinity());
    if (all) row.put("shape", shape);
    row.put("ok", all);
  };
  for (const bool as_csv : {true, false}) {
    INFO(as_csv);
    RowFile by_cells(folder.path() + "/cells", as_csv ? columns : std::vector<std::string>());
    RowFile by_dict(folder.path() + "/dict", as_csv ? columns : std::vector<std::string>());
    for (const bool all : {true, false, true}) {
      put(by_cells, all);
      by_cells.end_row();
      RowValues values;
      put(values, all);
      by_dict.add(make_dict(std::move(values.items)));
    }
    by_cells.flush();
    by_dict.flush();
    CHECK(content_of(by_cells.path()) == content_of(by_dict.path()));
    CHECK(content_of(by_cells.path()).find(as_csv ? "\"[2,3]\",true,\n" : "\"shape\":[2,3],\"ok\":true}\n") !=
          std::string::npos);
  }
  RowFile csv(folder.path() + "/order", columns);
  csv.put("limit", 1.0);
  CHECK_THROWS_AS(csv.put("id", int64_t{1}), Error);
}

TEST_CASE("a file that cannot be written is an error with its path", "[tables]") {
  const test::TemporaryFolder folder;
  try {
    RowFile file(folder.path() + "/missing/rows.csv", {"a"});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("/missing/rows.csv: cannot make the file: No such file") != std::string::npos);
  }
  RowFile full("/dev/full");
  const auto fill = [&] {
    full.add(make_dict({{"a", 1}}));
    full.flush();
  };
  CHECK_THROWS_AS(fill(), Error);
  struct stat status = {};
  CHECK((::stat("/dev/full", &status) == 0 && S_ISCHR(status.st_mode)));
}

TEST_CASE("runs in the same minute get folders of their own", "[tables]") {
  const test::TemporaryFolder folder;
  const std::string first = claim_run_folder(folder.path() + "/a/b", "op_time_measure_result", 3);
  const std::string second = claim_run_folder(folder.path() + "/a/b", "op_time_measure_result", 3);
  CHECK(first.find(folder.path() + "/a/b/op_time_measure_result/3/20") == 0);
  CHECK(first != second);
  struct stat facts = {};
  CHECK(::stat(second.c_str(), &facts) == 0);
  CHECK_THROWS_AS(claim_run_folder("/dev/null", "x", 0), Error);
}

TEST_CASE("packed rows give back their cells", "[tables]") {
  PackedRows rows;
  const std::vector<int64_t> shape{2, 3};
  for (int64_t i = 0; i < 20'000; ++i) {
    rows.put("op", "aten::add");
    if (i % 2) rows.put("number", static_cast<double>(i) / 2);
    rows.put("shape", c10::ArrayRef<int64_t>(shape));
    rows.put("id", i);
    if (i % 3) rows.put("flag", i % 2 == 0);
    if (i == 7) rows.put("text", std::string(2'000'000, 'x'));  // longer than a block
    rows.end_row();
  }
  CHECK(rows.size() == 20'000);
  CHECK(rows.bytes() < 20'000 * 200 + 4'000'000);
  const Values all = rows.values();
  REQUIRE(all.size() == 20'000);
  CHECK(json_text(all[0]) == R"({"op":"aten::add","shape":[2,3],"id":0})");
  CHECK(json_text(all[5]) == R"({"op":"aten::add","number":2.5,"shape":[2,3],"id":5,"flag":false})");
  CHECK(find_key(all[7], "text")->get_if<std::string>()->size() == 2'000'000);
  CHECK(json_text(all[19'999]) == R"({"op":"aten::add","number":9999.5,"shape":[2,3],"id":19999,"flag":false})");
}

TEST_CASE("a text from outside neither drives a terminal nor makes a line", "[tables]") {
  CHECK(printable("torch.add") == "torch.add");
  CHECK(printable("a\x1b[2J\r\n\t\x7f") == "a\\x1b[2J\\r\\n\\t\\x7f");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xc2\x9b\xc2\xa0\xc2\xad") == "\\x9b\\xa0\\xad");                    // controls of C1
  CHECK(printable("\xe2\x80\xae\xe2\x81\xa6\xe2\x80\xa8") == "\\u202e\\u2066\\u2028");  // direction; a line
  CHECK(printable("\xd0\xbc \xe6\x95\xb0 \xf0\x9f\x99\x82") == "\xd0\xbc \xe6\x95\xb0 \xf0\x9f\x99\x82");
  CHECK(printable("\xff\xc0\xaf\xe2\x80") == "\\xff\\xc0\\xaf\\xe2\\x80");           // no UTF-8
  CHECK(printable("\xed\xa0\x80\xf3\xa0\x80\xa0") == "\\xed\\xa0\\x80\\U000e0020");  // a surrogate; a tag
  CHECK(printable("a\n\tb", "\n\t") == "a\n\tb");
  const std::string table = text_table({{"op"}, {"n", true}}, {{"a\nop_tools error: forged", "\x1b[1m"}});
  CHECK(std::count(table.begin(), table.end(), '\n') == 1);
  CHECK(table.find('\x1b') == std::string::npos);
}
