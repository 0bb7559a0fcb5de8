// The file of a recording: appended rows are read back, whatever became of its end or its bytes.
#include <ATen/core/Tensor.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "base/error.h"
#include "catch.h"
#include "record/recording_file.h"
#include "record/row_tables.h"
#include "report/json_writer.h"
#include "runs/run_part.h"
#include "temporary_folder.h"

namespace op_tools {
namespace {

using test::TemporaryFolder;

// `calls` more calls that hand a tensor on, after those in `all`.
Recording more_rows(const Recording& all, uint32_t calls) {
  Recording rows;
  const auto string = [&](const std::string& text) {
    rows.strings.push_back(text);
    return static_cast<StringNumber>(all.strings.size() + rows.strings.size() - 1);
  };
  const StringNumber op = string("torch.add"), place = string("args[0]"), result = string("result");
  rows.lists.push_back({2, static_cast<int64_t>(calls)});
  const auto shape = static_cast<ListNumber>(all.lists.size());
  for (uint32_t i = 0; i < calls; ++i) {
    RecordedValue value;
    value.origin = Origin::kCall;
    value.dtype = c10::kFloat;
    value.known = true;
    value.producer = static_cast<uint32_t>(all.calls.size()) + i;
    value.shape = shape;
    value.hash = 0x1234567890ABCDEFu + i;
    value.norm = 0.5 * i;
    value.projections = {1, -2, 3, -4.5};
    rows.values.push_back(value);
    RecordedCall call;
    call.id = 7 + i;
    call.op = op;
    call.first_use = static_cast<uint32_t>(all.uses.size() + rows.uses.size());
    call.inputs = i == 0 ? 0 : 1;
    call.outputs = 1;
    const auto number = static_cast<uint32_t>(all.values.size() + i);
    if (i > 0) rows.uses.push_back({place, number - 1});
    rows.uses.push_back({result, number});
    call.grad_enabled = true;
    rows.calls.push_back(call);
  }
  return rows;
}

Recording empty() {
  Recording all;
  all.strings.emplace_back();
  all.lists.emplace_back();
  return all;
}

void add(const Recording& rows, Recording& all) {
  const auto extend = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  extend(all.strings, rows.strings);
  extend(all.lists, rows.lists);
  extend(all.values, rows.values);
  extend(all.uses, rows.uses);
  extend(all.calls, rows.calls);
}

void check_equal_rows(const Recording& recording, const Recording& other) {
  REQUIRE(recording.values.size() == other.values.size());
  REQUIRE(recording.uses.size() == other.uses.size());
  REQUIRE(recording.calls.size() == other.calls.size());
  bool same = true;
  for (size_t i = 0; i < recording.values.size(); ++i) {
    const RecordedValue &a = recording.values[i], &b = other.values[i];
    same = same && a.origin == b.origin && a.producer == b.producer && a.hash == b.hash && a.norm == b.norm &&
           a.shape == b.shape && a.projections == b.projections && a.known == b.known && a.dtype == b.dtype;
  }
  for (size_t i = 0; i < recording.uses.size(); ++i) same = same && recording.uses[i].value == other.uses[i].value;
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const RecordedCall &a = recording.calls[i], &b = other.calls[i];
    same = same && a.id == b.id && a.op == b.op && a.first_use == b.first_use && a.grad_enabled == b.grad_enabled &&
           a.step == b.step && a.inputs == b.inputs && a.outputs == b.outputs;
  }
  CHECK(same);
}

void check_equal(const Recording& recording, const Recording& other) {
  CHECK(recording.strings == other.strings);
  CHECK(recording.lists == other.lists);
  check_equal_rows(recording, other);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// A file of two blocks of rows, and its contents after each.
struct Sample {
  Sample() : path(folder / "rank0-1.oprec"), all(empty()) {
    RecordingFile file(path, make_dict({{"rank", 0}, {"seeds", make_list({1, 2.5, "x", true, Value()})}}));
    after.emplace_back(file.bytes(), all);
    for (const uint32_t calls : {3u, 40u}) {
      const Recording rows = more_rows(all, calls);
      file.append(rows);
      add(rows, all);
      after.emplace_back(file.bytes(), all);
    }
    file.end();
    bytes = bytes_of(path);
  }
  TemporaryFolder folder;
  std::string path;
  Recording all;
  std::vector<std::pair<uint64_t, Recording>> after;
  std::string bytes;
};

TEST_CASE("A recording is read as it was written", "[recording]") {
  Sample sample;
  const Recording read = read_recording(sample.path);
  check_equal(read, sample.all);
  CHECK(read.complete);
  CHECK(read.damage.empty());
  CHECK(json_text(read.header) == R"({"rank":0,"seeds":[1,2.5,"x",true,null]})");
  CHECK(read.string(read.calls[2].op) == "torch.add");
  CHECK(read.outputs(read.calls[2])[0].value == 2);

  const std::string copy = sample.folder / "copy.oprec";
  write_recording(read, copy);
  check_equal(read_recording(copy), read);
}

TEST_CASE("A recording is read while it is written, and after its end", "[recording]") {
  TemporaryFolder folder;
  Recording all = empty();
  RecordingFile file(folder / "a.oprec", make_dict({}));
  CHECK_FALSE(read_recording(file.path()).complete);
  for (int i = 0; i < 3; ++i) {
    const Recording rows = more_rows(all, 5);
    file.append(rows);
    add(rows, all);
    check_equal(read_recording(file.path()), all);
    CHECK_FALSE(read_recording(file.path()).complete);
    file.end();
    CHECK(read_recording(file.path()).complete);
  }
  CHECK_THROWS_AS(RecordingFile(file.path(), make_dict({})), Error);  // no file is replaced
}

TEST_CASE("A recording that is cut off has all blocks before the cut", "[recording]") {
  Sample sample;
  for (size_t length = 0; length < sample.bytes.size(); ++length) {
    write_bytes(sample.path, sample.bytes.substr(0, length));
    if (length < sample.after[0].first) {
      CHECK_THROWS_AS(read_recording(sample.path), Error);
      continue;
    }
    const Recording read = read_recording(sample.path);
    const Recording* wanted = nullptr;
    for (const auto& [end, all] : sample.after) {
      if (end <= length) wanted = &all;
    }
    CHECK_FALSE(read.complete);
    CHECK(read.damage.empty());
    REQUIRE(read.calls.size() == wanted->calls.size());
    REQUIRE(read.strings.size() == wanted->strings.size());
  }
}

TEST_CASE("Damage of a recording is found, and the blocks before it are read", "[recording]") {
  Sample sample;
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bytes = sample.bytes;
    const size_t at = random() % bytes.size();
    const char old = bytes[at];
    bytes[at] = static_cast<char>(random());
    if (bytes[at] == old) continue;
    write_bytes(sample.path, bytes);
    if (at < sample.after[0].first) {
      CHECK_THROWS_AS(read_recording(sample.path), Error);
      continue;
    }
    const Recording read = read_recording(sample.path);
    const Recording* wanted = nullptr;
    for (const auto& [end, all] : sample.after) {
      if (end <= at) wanted = &all;
    }
    CHECK_FALSE(read.complete);
    check_equal(read, *wanted);
  }
}

// A hostile file has right checksums: rows are changed before they are written.
TEST_CASE("Rows that name absent rows are damage", "[recording]") {
  TemporaryFolder folder;
  int number = 0;
  const auto damage_of = [&](const std::function<void(Recording&)>& change) {
    Recording rows = more_rows(empty(), 4);
    change(rows);
    RecordingFile file(folder / (std::to_string(number++) + ".oprec"), make_dict({}));
    const uint64_t begin = file.bytes();
    file.append(rows);
    const Recording read = read_recording(file.path());
    CHECK(read.calls.empty());
    CHECK(read.strings.size() == 1);
    const std::string place = "byte " + std::to_string(begin) + ": ";
    CHECK(read.damage.substr(0, place.size()) == place);
    return read.damage.substr(std::min(place.size(), read.damage.size()));
  };
  CHECK(damage_of([](Recording& rows) { rows.calls[1].op = 4; }) == "a string that is not there");
  CHECK(damage_of([](Recording& rows) { rows.uses[1].place = 99; }) == "a tensor's value that is not there");
  CHECK(damage_of([](Recording& rows) { rows.uses[1].value = 4; }) == "a tensor's value that is not there");
  CHECK(damage_of([](Recording& rows) { rows.values[0].shape = 2; }) == "a list that is not there");
  CHECK(damage_of([](Recording& rows) { rows.values[0].producer = 4; }) == "a producer that is no call");
  CHECK(damage_of([](Recording& rows) { rows.values[0].nan = -2; }) == "a negative count");
  CHECK(damage_of([](Recording& rows) { rows.lists[0][0] = -1; }) == "a negative size");
  CHECK(damage_of([](Recording& rows) { rows.values[0].dtype = static_cast<c10::ScalarType>(120); }) ==
        "an unknown dtype");
  CHECK(damage_of([](Recording& rows) { rows.values[0].origin = static_cast<Origin>(9); }) ==
        "an unknown origin of a value");
  CHECK(damage_of([](Recording& rows) { rows.calls[0].level = static_cast<Level>(2); }) == "an unknown level or phase");
  CHECK(damage_of([](Recording& rows) { reinterpret_cast<char&>(rows.calls[0].grad_enabled) = 3; }) ==
        "a boolean is neither 0 nor 1");
  CHECK(damage_of([](Recording& rows) {
          rows.calls[0].first_use = 0xFFFFFFF0u;
          rows.calls[0].inputs = rows.calls[0].outputs = 0x10;
        }) == "a tensor of a call that is not there");
}

TEST_CASE("A file that is no recording is an Error with path and offset", "[recording]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.oprec";
  const auto message = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    try {
      read_recording(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message("").find(path + ": byte 0: ") == 0);
  CHECK(message("OPREC01\n").find(path + ": byte 0: ") == 0);
  CHECK(message("OPREC02\n").find(path + ": byte 0: ") == 0);
  CHECK(message("PK\3\4 something else").find(path + ": byte 0: ") == 0);
  CHECK(message("OPREC03\n").find(path + ": byte 8: the header is cut off") == 0);
  CHECK_THROWS_AS(read_recording(folder / "missing"), Error);
  CHECK_THROWS_AS(read_recording(folder.path()), Error);

  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += '[';
  CHECK_THROWS_AS(value_of_json(deep), Error);
  CHECK_THROWS_AS(value_of_json("{\"a\": "), Error);
  CHECK(json_text(value_of_json(R"({"b": [1, -2.5, null], "a": "x\n"})")) == R"({"a":"x\n","b":[1,-2.5,null]})");
}

TEST_CASE("Recordings of a folder come by rank", "[recording]") {
  TemporaryFolder folder;
  CHECK_THROWS_AS(find_recordings(folder.path()), Error);
  CHECK_THROWS_AS(find_recordings(folder / "missing"), Error);
  for (const char* name : {"rank10-5.oprec", "rank2-9.oprec", "rank2-8.oprec", "other.oprec", "rank1-1.txt"}) {
    write_bytes(folder / name, "");
  }
  const std::vector<std::string> wanted{folder / "rank2-8.oprec", folder / "rank2-9.oprec", folder / "rank10-5.oprec",
                                        folder / "other.oprec"};
  CHECK(find_recordings(folder.path()) == wanted);
  CHECK(find_recordings(folder / "other.oprec") == std::vector<std::string>{folder / "other.oprec"});
}

TEST_CASE("A block that the disk has no room for is taken back", "[recording]") {
  TemporaryFolder folder;
  Recording all = empty();
  RecordingFile file(folder / "a.oprec", make_dict({}));
  const Recording rows = more_rows(all, 5);
  file.append(rows);
  add(rows, all);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  auto* const old = std::signal(SIGXFSZ, SIG_IGN);
  rlimit less = before;
  less.rlim_cur = file.bytes() + 100;
  ::setrlimit(RLIMIT_FSIZE, &less);
  const Recording large = more_rows(all, 500);
  CHECK_THROWS_AS(file.append(large), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old);
  check_equal(read_recording(file.path()), all);
  file.append(large);
  add(large, all);
  check_equal(read_recording(file.path()), all);
}

TEST_CASE("A long recording forgets scalars and sizes that pass, and its reader knows them again", "[record]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/rank0-1.oprec";
  RowTables tables;
  RecordingFile file(path, make_dict({}));
  const StringNumber op = tables.string("aten::add"), written = tables.written_place(op);
  const auto add_call = [&](int64_t scalar) {
    RecordedValue value;
    value.shape = tables.list({scalar, 3});
    RecordedCall call;
    call.op = tables.string("aten::add");
    call.scalars = tables.passing_string("alpha=" + std::to_string(scalar));
    tables.add_call(call, {{op, tables.add_value(value)}}, 0);
    return call.scalars;
  };
  constexpr auto kCalls = static_cast<int64_t>(3 * RowTables::kKnown);
  const StringNumber first = add_call(1);
  CHECK(add_call(1) == first);
  for (int64_t i = 2; i < kCalls; ++i) add_call(i);
  CHECK(add_call(kCalls - 1) == add_call(kCalls - 1));
  CHECK(add_call(1) != first);
  CHECK(tables.string("aten::add") == op);
  CHECK(tables.written_place(op) == written);
  file.append(tables.pending());
  file.end();

  const Recording read = read_recording(path);
  REQUIRE(read.complete);
  REQUIRE(read.calls.size() == static_cast<size_t>(kCalls) + 3);
  const RecordedCall &begin = read.calls.front(), &end = read.calls.back();
  CHECK(begin.scalars == end.scalars);
  CHECK(read.string(end.scalars) == "alpha=1");
  CHECK(read.values.front().shape == read.values.back().shape);
  CHECK(read.list(read.values.back().shape) == std::vector<int64_t>{1, 3});
  CHECK(read.string(read.calls[kCalls].scalars) == "alpha=" + std::to_string(kCalls - 1));
}

TEST_CASE("A recording has no more rows than its numbers can tell apart", "[record]") {
  RowTables tables(RowTables::kMostRows - 2);
  const auto add_call = [&] { tables.add_call(RecordedCall(), {{0, 0}}, 0); };
  add_call();
  tables.written();
  CHECK_FALSE(tables.is_full());
  CHECK(tables.next_call() == RowTables::kMostRows - 1);
  add_call();
  tables.written();
  CHECK(tables.is_full());
}

// Calls of two threads, which are in different steps, over each other's values and over a few parameters; some values
// show memory that nothing wrote.
Recording random_rows(const Recording& all, uint32_t block, std::mt19937& random) {
  const auto below = [&](size_t end) { return static_cast<uint32_t>(random() % end); };
  Recording rows;
  for (const char* const op : {"torch.empty", "torch.add", "torch.Tensor.add_"}) rows.strings.emplace_back(op);
  const auto op = static_cast<StringNumber>(all.strings.size());
  rows.lists.push_back({1 + static_cast<int64_t>(below(9))});
  const auto add_value = [&](Origin origin, uint32_t producer) {
    RecordedValue value;
    value.origin = origin;
    value.dtype = c10::kFloat;
    value.known = true;
    value.producer = producer;
    value.shape = static_cast<ListNumber>(all.lists.size());
    value.hash = random();
    rows.values.push_back(value);
    return static_cast<uint32_t>(all.values.size() + rows.values.size() - 1);
  };
  if (block == 0) add_value(Origin::kParameter, kNoCall);
  for (uint32_t i = 0; i < 1 + below(12); ++i) {
    const uint32_t thread = below(2);
    RecordedCall call;
    call.id = random();
    call.thread = thread;
    call.step = block / 2 + (thread == 0 ? 0 : below(4));
    call.op = op + below(3);
    call.first_use = static_cast<uint32_t>(all.uses.size() + rows.uses.size());
    call.inputs = below(4);
    call.outputs = below(3);
    for (uint32_t input = 0; input < call.inputs; ++input) {
      rows.uses.push_back({0, below(all.values.size() + rows.values.size())});
    }
    for (uint32_t output = 0; output < call.outputs; ++output) {
      rows.uses.push_back({0, add_value(Origin::kCall, static_cast<uint32_t>(all.calls.size() + rows.calls.size()))});
    }
    rows.calls.push_back(call);
  }
  return rows;
}

TEST_CASE("parts of a recording are read apart, with the rows that they have in the whole", "[recording]") {
  std::mt19937 random(11);
  for (int run = 0; run < 30; ++run) {
    const TemporaryFolder folder;
    const std::string path = folder / "rank0-1.oprec";
    Recording all = empty();
    RecordingFile file(path, make_dict({{"rank", 0}}));
    const uint32_t blocks = 1 + random() % 20;
    for (uint32_t block = 0; block < blocks; ++block) {
      const Recording rows = random_rows(all, block, random);
      file.append(rows);
      add(rows, all);
      if (block % 5 == 0) file.note(make_dict({{"seen", static_cast<int64_t>(block)}}));
    }
    file.end();
    const Recording whole = read_recording(path);
    REQUIRE(whole.blocks.size() == blocks);
    for (const std::vector<int64_t>& ends : {std::vector<int64_t>{}, {3}, {0, 2, 3, 7, 50}, {1, 2, 3, 4, 5, 6}}) {
      const RecordingParts parts(whole, ends);
      int64_t first = std::numeric_limits<int64_t>::min();
      size_t calls = 0;
      for (size_t part = 0; part <= ends.size(); ++part) {
        const int64_t end = part < ends.size() ? ends[part] : std::numeric_limits<int64_t>::max();
        const Recording alone = parts.read(part);
        check_equal_rows(alone, steps_of(whole, first, end));
        CHECK(alone.complete);
        CHECK(alone.path == path);
        calls += alone.calls.size();
        first = end;
      }
      CHECK(calls == whole.calls.size());
    }
  }
}

TEST_CASE("a part of a recording whose file has changed is refused", "[recording]") {
  const Sample sample;
  const RecordingParts parts(read_recording(sample.path), {});
  CHECK(parts.read(0).calls.size() == 43);
  std::string bytes = sample.bytes;
  bytes[sample.after[1].first - 1] ^= 1;
  write_bytes(sample.path, bytes);
  CHECK_THROWS_AS(parts.read(0), Error);
  write_bytes(sample.path, sample.bytes.substr(0, sample.after[1].first));
  CHECK_THROWS_AS(parts.read(0), Error);
}

}  // namespace
}  // namespace op_tools
