#include "memory/memory_rows.h"

namespace op_tools {

const Columns<MemoryRow>& MemoryRow::columns() {
  static const Columns<MemoryRow> all{
      "MemoryRow",
      "The allocations of a place of the program on a device.",
      {
          {"device", &MemoryRow::device, "the device"},
          {"op", &MemoryRow::op, "the operator that allocated; in brackets where no operator of the tool's level ran"},
          {"phase", &MemoryRow::phase, "`forward`, `backward` or `optimizer`"},
          {"module", &MemoryRow::module, "the module that made the call"},
          {"line", &MemoryRow::line, "the program's line"},
          {"kind", &MemoryRow::kind, "`parameter`, `activation`, `gradient`, `optimizer` or `other`"},
          {"alive", &MemoryRow::alive, "blocks that are still allocated"},
          {"alive_bytes", &MemoryRow::alive_bytes, "their bytes"},
          {"peak_bytes", &MemoryRow::peak_bytes, "bytes that were there when the device had most"},
          {"allocations", &MemoryRow::allocations, "blocks allocated in all"},
          {"allocated_bytes", &MemoryRow::allocated_bytes, "their bytes"},
          {"leaks", &MemoryRow::leaks, "it grows with the steps"},
          {"growth", &MemoryRow::growth, "bytes per step, in the second half of the steps"},
          {"birth_steps", &MemoryRow::birth_steps,
           "steps that allocated the memory that is still allocated, or the memory that it was made of"},
          {"first_step", &MemoryRow::first_step, "the first step in which it allocated"},
          {"last_step", &MemoryRow::last_step, "the last step in which it allocated"},
          {"bytes_at_steps", &MemoryRow::bytes_at_steps,
           "bytes that were allocated when a step had ended: after `step_distance` steps, twice as many, ..."},
          {"step_distance", &MemoryRow::step_distance, "steps from each of these figures to the next"},
          {"freed_by", &MemoryRow::freed_by, "the operator in which the last block was freed, or between which"},
          {"stack", &MemoryRow::stack, "the stack of the first allocation, with backtrace=True"},
      }};
  return all;
}

const Columns<OverwriteRow>& OverwriteRow::columns() {
  static const Columns<OverwriteRow> all{
      "OverwriteRow",
      "An operator that wrote outside of a block of memory.",
      {
          {"op", &OverwriteRow::op, "the operator that ran before it was seen"},
          {"phase", &OverwriteRow::phase, "`forward`, `backward` or `optimizer`"},
          {"module", &OverwriteRow::module, "its module"},
          {"line", &OverwriteRow::line, "the program's line"},
          {"step", &OverwriteRow::step, "the training step"},
          {"operators", &OverwriteRow::operators,
           "1: it wrote; more: one of so many, of which it is the last; they were not given the block"},
          {"side", &OverwriteRow::side, "`behind` or `before` the block"},
          {"bytes", &OverwriteRow::bytes, "how many bytes differ"},
          {"offset", &OverwriteRow::offset, "of the first byte, from the beginning of the block"},
          {"block_bytes", &OverwriteRow::block_bytes, "size of the block"},
          {"made_by", &OverwriteRow::made_by, "the operator that allocated the block"},
          {"made_at", &OverwriteRow::made_at, "its line"},
      }};
  return all;
}

const Columns<BlockRow>& BlockRow::columns() {
  static const Columns<BlockRow> all{"BlockRow",
                                     "A block of memory that is still allocated.",
                                     {
                                         {"place", &BlockRow::place, "index of its row"},
                                         {"address", &BlockRow::address, "where it is"},
                                         {"bytes", &BlockRow::bytes, "its size"},
                                         {"step", &BlockRow::step, "the step in which it was allocated"},
                                         {"device", &BlockRow::device, "the device"},
                                     }};
  return all;
}

const Columns<DeviceMemoryRow>& DeviceMemoryRow::columns() {
  static const Columns<DeviceMemoryRow> all{
      "DeviceMemoryRow",
      "The memory of a device, as far as the tool saw it.",
      {
          {"device", &DeviceMemoryRow::device, "the device"},
          {"alive_bytes", &DeviceMemoryRow::alive_bytes, "still allocated"},
          {"peak_bytes", &DeviceMemoryRow::peak_bytes, "most at once"},
          {"peak_step", &DeviceMemoryRow::peak_step, "the step of the peak"},
          {"peak_op", &DeviceMemoryRow::peak_op, "the operator that reached it"},
          {"reports", &DeviceMemoryRow::reports,
           "its allocator reports; False: only tensors that operators were given or returned are known"},
          {"allocator_bytes", &DeviceMemoryRow::allocator_bytes,
           "the allocator's last figure of memory that it had given out"},
          {"allocator_peak_bytes", &DeviceMemoryRow::allocator_peak_bytes, "the most that it said during a call"},
          {"reserved_bytes", &DeviceMemoryRow::reserved_bytes,
           "the allocator's last figure of its memory of the device, with the part that it keeps for later"},
          {"reserved_peak_bytes", &DeviceMemoryRow::reserved_peak_bytes, "the most of it"},
          {"unused_bytes", &DeviceMemoryRow::unused_bytes,
           "the part of the most that no tensor used at that moment: fragmentation, and the rest of a block just got"},
      }};
  return all;
}

}  // namespace op_tools
