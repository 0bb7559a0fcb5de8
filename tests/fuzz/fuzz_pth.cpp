// Reads damaged .pth files: fuzz_pth SEED COUNT. Half of the mutants keep their wrong CRCs: each
// must be refused or read as the same value. The other half get right CRCs, so that the damage
// reaches the pickle machine: each must be refused or give a value that can be walked. Anything
// else ends the program (a crash, a sanitizer's report, status 1).
#include <cstdlib>
#include <iostream>
#include <random>

#include "capture/pth.h"
#include "hooks/error.h"
#include "pth_testing.h"

int main(int argc, char** argv) {
  using namespace op_tools;
  if (argc != 3) {
    std::cerr << "usage: fuzz_pth SEED COUNT\n";
    return 64;
  }
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const uint64_t count = std::strtoull(argv[2], nullptr, 10);
  const auto samples = testing::sample_values();
  std::vector<std::string> files;
  for (const auto& sample : samples) files.push_back(testing::encode(sample));

  uint64_t refused = 0, same = 0, different = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t which = random() % files.size();
    const bool repair = i % 2 == 1;
    auto mutant = std::make_shared<std::string>(testing::mutate(files[which], random, repair));
    try {
      // Now and then with an owner, so that tensors point into the bytes.
      const Value value = read_pth(*mutant, "mutant", i % 3 == 0 ? mutant : nullptr);
      if (testing::same_value(value, samples[which])) {
        ++same;
      } else if (repair) {
        ++different;
        static_cast<void>(testing::same_value(value, value));  // reads every element
        describe(value);
      } else {
        std::cerr << "mutant " << i << " of seed " << argv[1] << " was read as another value: " << describe(value)
                  << "\n";
        return 1;
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  std::cout << count << " mutants: " << refused << " refused, " << same << " read as before, " << different
            << " with repaired CRCs read as another sound value\n";
  return 0;
}
