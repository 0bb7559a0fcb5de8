// OpMemoryCheck: which blocks the table knows, and when they are gone; the tool on the CPU.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "memory/memory_hook.h"
#include "memory/memory_table.h"
#include "quiet_log.h"
#include "temporary_folder.h"
#include "tensor/cpu_memory.h"

using namespace op_tools;  // NOLINT: a test

namespace {

const c10::Device kDevice(c10::kCUDA, 0);  // of which nothing is asked but its name

// Memory of a device that is known by its storage only. The address is never read.
c10::Storage device_storage(size_t address, size_t bytes) {
  auto* const pointer = reinterpret_cast<void*>(address);
  return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(pointer, kDevice), nullptr, /*resizable=*/false};
}

void make(MemoryTable& table, const std::string& op, const c10::Storage& result) {
  static const std::string line = "train.py:1";
  MemoryTable::OpenCall call(table, op);
  table.returned(call, result);
  table.end(call, {op, nullptr, &line, {}, MemoryPhase::kForward, true});
}

const DeviceMemoryRow& only_device(const MemoryTable::Snapshot& all) {
  REQUIRE(all.devices.size() == 1);
  return all.devices.front();
}

}  // namespace

TEST_CASE("memory of a device without reports is followed by its storages", "[memory]") {
  MemoryTable table(/*backtrace=*/false);
  c10::Storage kept = device_storage(0x1000, 100);
  {
    const c10::Storage dropped = device_storage(0x2000, 1000);
    make(table, "a", kept);
    make(table, "b", dropped);
  }
  // The second block is gone, though nothing reported it: it must not be part of a peak.
  const c10::Storage last = device_storage(0x3000, 500);
  make(table, "c", last);
  const MemoryTable::Snapshot all = table.snapshot(false);
  CHECK(only_device(all).alive_bytes == 600);
  CHECK(only_device(all).peak_bytes == 1100);
  CHECK(only_device(all).peak_op == "b");
  CHECK_FALSE(only_device(all).reports);
  CHECK_FALSE(only_device(all).allocator_bytes);
  REQUIRE(all.rows.size() == 3);
  CHECK(all.rows[0].op == "c");
  CHECK(all.rows[0].peak_bytes == 0);
  CHECK(all.rows[1].peak_bytes + all.rows[2].peak_bytes == 1100);
}

TEST_CASE("an address that is used again is another block", "[memory]") {
  MemoryTable table(false);
  {
    const c10::Storage first = device_storage(0x1000, 100);
    make(table, "a", first);
  }
  const c10::Storage second = device_storage(0x1000, 300);
  make(table, "b", second);
  const MemoryTable::Snapshot all = table.snapshot(false);
  REQUIRE(all.rows.size() == 2);
  CHECK(all.rows[0].op == "b");
  CHECK(all.rows[0].alive_bytes == 300);
  CHECK(all.rows[1].alive_bytes == 0);
  CHECK(only_device(all).peak_bytes == 300);
}

TEST_CASE("memory that a call allocates and frees again counts for the peak only", "[memory]") {
  MemoryTable table(false);
  const c10::Storage result = device_storage(0x1000, 100);
  {
    MemoryTable::OpenCall call(table, "a");
    table.reported(call, {reinterpret_cast<void*>(0x1000), 100, 100, 2000, kDevice});
    table.reported(call, {reinterpret_cast<void*>(0x2000), 700, 800, 2500, kDevice});
    table.reported(call, {reinterpret_cast<void*>(0x2000), -700, 100, 2500, kDevice});
    table.returned(call, result);
    table.end(call, {"a", nullptr, nullptr, {}, MemoryPhase::kForward, true});
  }
  const MemoryTable::Snapshot all = table.snapshot(false);
  REQUIRE(all.rows.size() == 1);
  CHECK(all.rows[0].alive_bytes == 100);
  CHECK(all.rows[0].peak_bytes == 800);
  CHECK(all.rows[0].allocations == 2);
  CHECK(all.rows[0].allocated_bytes == 800);
  CHECK(only_device(all).reports);
  CHECK(only_device(all).allocator_bytes == 100);
  CHECK(only_device(all).allocator_peak_bytes == 800);
  CHECK(only_device(all).reserved_bytes == 2500);
  CHECK(only_device(all).reserved_peak_bytes == 2500);
  CHECK(only_device(all).unused_bytes == 1700);
}

TEST_CASE("an allocator that does not report its memory leaves nothing unused", "[memory]") {
  MemoryTable table(false);
  MemoryTable::OpenCall call(table, "a");
  table.reported(call, {reinterpret_cast<void*>(0x1000), 100, 100, 0, kDevice});
  table.end(call, {"a", nullptr, nullptr, {}, MemoryPhase::kForward, true});
  CHECK_FALSE(only_device(table.snapshot(false)).reserved_bytes);
  CHECK_FALSE(only_device(table.snapshot(false)).unused_bytes);
}

TEST_CASE("a line whose text lies at two addresses is a single place", "[memory]") {
  MemoryTable table(false);
  const std::string lines[2] = {"train.py:1", "train.py:1"};
  const c10::Storage results[2] = {device_storage(0x1000, 100), device_storage(0x2000, 50)};
  for (int i = 0; i < 2; ++i) {
    MemoryTable::OpenCall call(table, "a");
    table.returned(call, results[i]);
    table.end(call, {"a", nullptr, &lines[i], {}, MemoryPhase::kForward, true});
  }
  const MemoryTable::Snapshot all = table.snapshot(false);
  REQUIRE(all.rows.size() == 1);
  CHECK(all.rows[0].alive == 2);
  CHECK(all.rows[0].alive_bytes == 150);
  CHECK(all.rows[0].line == "train.py:1");
}

TEST_CASE("many places: none is lost when the table grows", "[memory]") {
  MemoryTable table(false);
  std::vector<c10::Storage> kept;
  std::deque<std::string> texts;  // stay where they are
  for (size_t i = 0; i < 300; ++i) {
    kept.push_back(device_storage(0x1000 + i * 0x100, 16));
    const std::string& op = texts.emplace_back("op" + std::to_string(i));
    const std::string& line = texts.emplace_back("line " + std::to_string(i));
    MemoryTable::OpenCall call(table, op);
    table.returned(call, kept.back());
    table.end(call, {op, nullptr, &line, {}, MemoryPhase::kForward, true});
    table.takes(kept.back(), /*parameter=*/true);  // a place that is like its predecessor
  }
  const MemoryTable::Snapshot all = table.snapshot(false);
  CHECK(only_device(all).alive_bytes == 300 * 16);
  const auto parameters = std::count_if(all.rows.begin(), all.rows.end(),
                                        [](const MemoryRow& row) { return row.kind == "parameter" && row.alive == 1; });
  CHECK(parameters == 300);
}

TEST_CASE("a place that grows with the steps leaks, memory that comes once does not", "[memory]") {
  MemoryTable table(false);
  std::vector<c10::Storage> kept;
  size_t address = 0x10000;
  const auto keep = [&](const char* op) {
    kept.push_back(device_storage(address += 0x100, 64));
    make(table, op, kept.back());
  };
  for (int step = 0; step < 20; ++step) {
    keep("leak");
    if (step == 1) keep("once");
    if (step < 8) keep("cache that fills");
    const c10::Storage temporary = device_storage(address += 0x100, 64);
    make(table, "temporary", temporary);
    table.step_ended(step + 1);
  }
  const MemoryTable::Snapshot all = table.snapshot(false);
  std::vector<std::string> leaking;
  for (const MemoryRow& row : all.rows) {
    if (row.leaks) leaking.push_back(row.op);
  }
  CHECK(leaking == std::vector<std::string>{"leak"});
  CHECK(all.rows.front().growth == 64);
}

TEST_CASE(
    "memory that grew until the last step leaks, though it was freed after it; memory that shrank before does not",
    "[memory]") {
  MemoryTable table(false);
  std::map<std::string, std::vector<c10::Storage>> kept;
  size_t address = 0x10000;
  for (int step = 0; step < 20; ++step) {
    for (const char* const op : {"until the end", "for an epoch", "freed halfway"}) {
      kept[op].push_back(device_storage(address += 0x100, 64));
      make(table, op, kept[op].back());
    }
    if (step % 9 == 8) kept["for an epoch"].clear();
    if (step == 15) kept["freed halfway"].clear();
    table.step_ended(step + 1);
  }
  kept.clear();
  const MemoryTable::Snapshot all = table.snapshot(false);
  REQUIRE(all.rows.size() == 3);
  for (const MemoryRow& row : all.rows) {
    CHECK(row.alive == 0);
    CHECK(row.leaks == (row.op == "until the end"));
    if (row.leaks) CHECK(row.growth == 64);
  }
}

TEST_CASE("a block that is made of the last step's leaks if it grows", "[memory]") {
  MemoryTable table(false);
  std::vector<c10::Storage> kept(4);
  size_t address = 0x10000;
  const auto make_of = [&](const std::string& op, const c10::Storage* input, size_t bytes) {
    MemoryTable::OpenCall call(table, op);
    if (input) call.takes(*input);
    c10::Storage result = device_storage(address += 0x10000, bytes);
    table.returned(call, result);
    table.end(call, {op, nullptr, nullptr, {}, MemoryPhase::kForward, true});
    return result;
  };
  for (size_t step = 0; step < 20; ++step) {
    kept[0] = make_of("joined", kept[0] ? &kept[0] : nullptr, 64 * (step + 1));
    kept[1] = make_of("average", kept[1] ? &kept[1] : nullptr, 64);
    kept[2] = make_of("joined for an epoch", kept[2] ? &kept[2] : nullptr, 64 * (step % 7 + 1));
    kept[3] = make_of("longer each time", nullptr, 64 * (step + 1));
    table.step_ended(static_cast<int64_t>(step) + 1);
  }
  const MemoryTable::Snapshot all = table.snapshot(false);
  REQUIRE(all.rows.size() == 4);
  for (const MemoryRow& row : all.rows) {
    CHECK(row.leaks == (row.op == "joined"));
    CHECK(row.alive == 1);
    if (row.leaks) CHECK(row.growth == 64);
  }
}

TEST_CASE("the CPU's allocations are reported from any thread, and the program's allocator is put back", "[memory]") {
  struct Counts final : CpuMemoryListener {
    void allocated(const void*, size_t bytes) override { all += bytes; }
    void freed(const void*) override { ++frees; }
    std::atomic<size_t> all{0}, frees{0};
  };
  c10::Allocator* const before = c10::GetCPUAllocator();
  const auto counts = std::make_shared<Counts>();
  std::optional<at::Tensor> outlives;
  {
    const CpuMemoryWatch watch(counts, /*guard=*/false);
    CHECK(watch.sees());
    CHECK_FALSE(cpu_memory_is_guarded());
    std::thread([&] { outlives = at::empty({1000}); }).join();
    CHECK(counts->all == 4000);
    at::empty({10});
    CHECK(counts->frees == 1);
  }
  CHECK(c10::GetCPUAllocator() == before);
  outlives->fill_(1);
  outlives.reset();  // given back to where it came from
  CHECK(counts->frees == 1);
}

TEST_CASE("a write outside of a block is found once", "[memory]") {
  struct Silent final : CpuMemoryListener {
    void allocated(const void*, size_t) override {}
    void freed(const void*) override {}
  };
  const CpuMemoryWatch watch(std::make_shared<Silent>(), /*guard=*/true);
  CHECK(cpu_memory_is_guarded());
  const at::Tensor block = at::ones({10}, at::kFloat);
  CHECK(overwrites().empty());
  auto* const bytes = static_cast<char*>(block.data_ptr());
  bytes[40] = 1;
  bytes[41] = 1;
  std::vector<Overwrite> damage = overwrites();
  REQUIRE(damage.size() == 1);
  CHECK(damage[0].offset == 40);
  CHECK(damage[0].bytes == 2);
  CHECK(overwrites().empty());
  bytes[-1] = 1;
  damage = overwrites();
  REQUIRE(damage.size() == 1);
  CHECK(damage[0].offset == -1);
}

TEST_CASE("Of many blocks those of the operator are looked at, and others in turn", "[memory]") {
  struct Silent final : CpuMemoryListener {
    void allocated(const void*, size_t) override {}
    void freed(const void*) override {}
  };
  const CpuMemoryWatch watch(std::make_shared<Silent>(), /*guard=*/true);
  std::vector<at::Tensor> others(3000);
  for (at::Tensor& other : others) other = at::ones({2});
  const at::Tensor used = at::ones({10});
  const auto write_behind = [](const at::Tensor& tensor) {
    static_cast<char*>(tensor.data_ptr())[tensor.nbytes()] = 1;
  };
  CHECK(overwrites({used.storage().data()}).empty());
  write_behind(used);
  std::vector<Overwrite> damage = overwrites({used.storage().data()});
  REQUIRE(damage.size() == 1);
  CHECK(damage[0].operators == 1);

  others.erase(others.begin() + 7);
  write_behind(others[5]);
  size_t operators = 0;
  do {
    damage = overwrites({used.storage().data()});
  } while (damage.empty() && ++operators < 10);
  REQUIRE(damage.size() == 1);
  CHECK(damage[0].address == others[5].storage().data());
  CHECK(damage[0].operators > operators);
  CHECK(damage[0].operators <= 7);
  write_behind(others[6]);
  CHECK(overwrites().size() == 1);
}

TEST_CASE("OpMemoryCheck names operators, and is on for all threads", "[memory]") {
  const test::TemporaryFolder folder;
  const test::QuietLog quiet;
  MemoryOptions options;
  options.output_dir = folder.path();
  options.files = false;
  std::vector<at::Tensor> kept;
  OpMemoryCheck check(options);
  kept.push_back(at::ones({100}));
  std::thread([&] { kept.push_back(at::mul(kept[0], 2)); }).join();
  const MemoryResult result = check.result();
  const auto bytes_of = [&](const std::string& op) {
    int64_t bytes = 0;
    for (const MemoryRow& row : result.rows) bytes += row.op == op ? row.alive_bytes : 0;
    return bytes;
  };
  CHECK(bytes_of("aten::ones") == 400);
  CHECK(bytes_of("aten::mul.Tensor") == 400);
}
