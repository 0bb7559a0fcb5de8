// Takes finished records from the program's threads and writes them on its own thread. Waiting records are bounded in
// bytes: submit() then waits, nothing is dropped. After the first failed write (folder gone) a single error is logged,
// records are counted as lost and the program goes on; likewise when the program waits and the disk has taken no record
// for the time limit (a network mount whose server is gone), and, with a warning, when the disk budget is used up. Any
// thread may call anything. In a forked child the writer is dead: submit() says so by returning false, the destructor
// leaves everything alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calls/call_store.h"
#include "calls/packed_values.h"
#include "calls/saved_call.h"
#include "capture/disk_budget.h"

namespace op_tools {

// The program's part.
struct Record {
  Packed packed;
  SavedCall (*unpack)(const Packed& packed);  // on the writer thread
  size_t bytes = 0;                           // memory that waits with this record
};

class RecordWriter {
 public:
  // `open` makes the store when the first record is there; it runs on the writer thread and may throw.
  RecordWriter(std::function<std::unique_ptr<CallStore>()> open, int64_t max_pending_bytes, DiskBudget budget,
               std::chrono::duration<double> time_limit);
  // Writes everything that waits. A thread that the disk does not let go is left behind.
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // False when the record is not written: the writer is closed, or this is a forked child.
  bool submit(Record record);
  // Returns when everything submitted before is readable in files. Shows a progress bar on a terminal when it takes
  // over a second.
  void flush();

  struct Progress {
    uint64_t records = 0;   // written
    uint64_t lost = 0;      // a write failed
    uint64_t left_out = 0;  // the disk budget was used up
    uint64_t bytes = 0;     // on disk
    uint64_t waits = 0;     // times that a full queue made the program wait
    std::string root;       // the run's folder; empty until the first record
    std::string failure;    // the text of the first failed write; empty when none failed
    std::string limit;      // the part of the disk budget that is used up; empty: none
  };
  Progress progress() const;
  // It writes nothing any more: a write failed, or the disk budget is used up.
  bool is_closed() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // its thread holds it, too
};

}  // namespace op_tools
