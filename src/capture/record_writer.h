// Takes finished records from the program's threads and writes them on its own thread. What waits is bounded in
// bytes: submit() then waits, nothing is dropped. After the first failed write (disk full, folder gone) one error is
// logged, records are counted as lost and the program goes on. Any thread may call anything.
// In a forked child the writer is dead: submit() says so by returning false, the destructor leaves everything alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calls/call_store.h"
#include "calls/packed_values.h"
#include "calls/saved_call.h"

namespace op_tools {

// What the program hands over.
struct Record {
  Packed packed;
  SavedCall (*unpack)(const Packed& packed);  // on the writer thread
  size_t bytes = 0;                           // memory that waits with this record
};

class RecordWriter {
 public:
  // `open` makes the store when the first record is there; it runs on the writer thread and may throw.
  RecordWriter(std::function<std::unique_ptr<CallStore>()> open, int64_t max_pending_bytes);
  ~RecordWriter();  // writes everything that waits
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // False when the record is lost: an earlier write failed, or this is a forked child.
  bool submit(Record record);
  // Returns when everything submitted before is readable in files. Shows a progress bar on a terminal when it takes
  // over a second.
  void flush();

  struct Progress {
    uint64_t records = 0;  // written
    uint64_t lost = 0;
    uint64_t bytes = 0;   // on disk
    uint64_t waits = 0;   // times that a full queue made the program wait
    std::string root;     // the run's folder; empty until the first record
    std::string failure;  // the text of the first failed write; empty when none failed
  };
  Progress progress() const;
  bool failed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace op_tools
