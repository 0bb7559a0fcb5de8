// What replayed calls took, by operator: medians over runs, how far they spread, and the ratio to another report. No
// clock, no printing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "run_op_from_data/summary.h"

namespace op_tools::replay {

struct OpTime {
  std::string name;
  std::string phase;     // "forward", "backward"
  size_t calls = 0;      // captured calls
  size_t runs = 0;       // of all of them
  double median_ms = 0;  // the calls' medians, added up
  double least_ms = 0;   // the calls' fastest runs, added up
  // How far the middle half of a call's runs spreads, as a share of its median; of several calls the median.
  double spread = 0;
};

// The middle value, of an even number the mean of the two in the middle; 0 of none.
double median_of(std::vector<double> values);
double spread_of(std::vector<double> values);

// Most time first.
std::vector<OpTime> op_times(const std::vector<CallDigest>& calls);
// From a file that --json wrote. Throws FileError.
std::vector<OpTime> read_times(const std::string& path);

std::string times_table(const std::vector<OpTime>& times);
// Largest ratio first; operators that only either of them has are named below.
std::string comparison_table(const std::vector<OpTime>& times, const std::vector<OpTime>& others,
                             const std::string& other_name);

}  // namespace op_tools::replay
