// Reads damaged .pth files: fuzz_pth SEED COUNT. A third of the mutants keep their wrong CRCs: each must be refused or
// read as the same value. The others get right CRCs, so that the damage reaches the pickle machine (flipped and moved
// bytes; or records swapped, repeated, left out, made of other records, and pickles with deep nesting, cycles and huge
// numbers): each must be refused or give a value that can be walked. No mutant may take more memory than its size
// explains. Anything else ends the program (a crash, a sanitizer's report, status 1).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <random>
#include <utility>

#include "capture/pth.h"
#include "capture/zip.h"
#include "hooks/error.h"
#include "pth_testing.h"

// Of the address sanitizer; without it nothing is counted.
extern "C" __attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                                               void (*)(const volatile void*));

namespace {

using namespace op_tools;

// What one read allocates, freed again or not: a value of some 100 bytes may stand for one byte of a pickle, and
// vectors double. Measured most: see docs/testing.md.
constexpr size_t kMostPerByte = 600;
constexpr size_t kMostAtLeast = size_t{4} << 20;

std::atomic<size_t> g_allocated{0};

void count_allocation(const volatile void*, size_t size) {
  g_allocated += size;
}
void ignore_free(const volatile void*) {}

using Records = std::vector<std::pair<std::string, std::string>>;  // name, payload

Records records_of(const std::string& bytes) {
  const MemorySource source(bytes);
  Records records;
  for (const ZipEntry& entry : read_zip_directory(source)) {
    records.emplace_back(entry.name, bytes.substr(payload_position(source, entry), entry.size));
  }
  return records;
}

std::string archive_of(const Records& records) {
  std::string bytes;
  ZipDirectory directory;
  for (const auto& [name, payload] : records) {
    const uint32_t crc = crc32_of(payload);
    directory.add(name, payload.size(), crc, bytes.size());
    append_local_header(bytes, name, payload.size(), crc, bytes.size());
    bytes += payload;
  }
  directory.append_to(bytes, bytes.size());
  return bytes;
}

// Pieces of pickles that ask for trouble.
std::string hostile_piece(std::mt19937_64& random) {
  const auto repeat = [](std::string_view part, size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += part;
    return out;
  };
  const auto number = [&random](size_t bytes) {
    std::string out;
    constexpr uint64_t kNumbers[] = {0,          1,          4,          0x7f,       0xff, 0xffff,
                                     0x7fffffff, 0xffffffff, 1ull << 40, ~0ull >> 1, ~0ull};
    const uint64_t value = kNumbers[random() % std::size(kNumbers)];
    for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
    return out;
  };
  const auto slot = [&random] { return std::string(1, static_cast<char>(random() % 24)); };
  switch (random() % 12) {
    case 0:
      return repeat("]", random() % 3000);
    case 1:
      return repeat("\x85", random() % 3000);
    case 2:
      return repeat("(", random() % 2000) + repeat("t", random() % 2000);
    case 3:
      return "]q" + slot() + "h" + slot() + "a";
    case 4:
      return "}q" + slot() + "h" + slot() + "h" + slot() + "s";
    case 5:
      return "q" + slot() + repeat("h" + slot() + "\x86", random() % 60);
    case 6:
      return "h" + slot();
    case 7:
      return "r" + number(4);
    case 8:
      return "X" + number(4);
    case 9:
      return "\x8a\x08" + number(8);
    case 10:
      return "J" + number(4);
    default:
      return std::string(1, "0.NRbtu)}]aes\x81\x85\x86\x87\x88\x89Q"[random() % 20]);
  }
}

// Another archive of the same records, with right CRCs.
std::string restructure(const std::string& bytes, std::mt19937_64& random) {
  Records records = records_of(bytes);
  const auto any = [&]() -> std::pair<std::string, std::string>& { return records[random() % records.size()]; };
  for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
    switch (random() % 8) {
      case 0:
        std::swap(any().second, any().second);
        break;
      case 1:
        std::swap(any().first, any().first);
        break;
      case 2:
        records.push_back(any());
        break;
      case 3:
        if (records.size() > 1) records.erase(records.begin() + static_cast<std::ptrdiff_t>(random() % records.size()));
        break;
      case 4:
        any().second.resize(random() % 100);
        break;
      default: {
        std::string& pickle = records.front().second;
        pickle.insert(pickle.empty() ? 0 : random() % pickle.size(), hostile_piece(random));
      }
    }
  }
  return archive_of(records);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: fuzz_pth SEED COUNT\n";
    return 64;
  }
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const uint64_t count = std::strtoull(argv[2], nullptr, 10);
  const auto samples = testing::sample_values();
  std::vector<std::string> files;
  for (const auto& sample : samples) files.push_back(testing::encode(sample));
  const bool counts = __sanitizer_install_malloc_and_free_hooks != nullptr &&
                      __sanitizer_install_malloc_and_free_hooks(&count_allocation, &ignore_free) != 0;

  uint64_t refused = 0, same = 0, different = 0;
  size_t most_allocated = 0, of_size = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t which = random() % files.size();
    const bool sound = i % 3 != 0;  // its CRCs are right
    auto mutant = std::make_shared<std::string>(i % 3 == 2 ? restructure(files[which], random)
                                                           : testing::mutate(files[which], random, sound));
    try {
      g_allocated = 0;
      // Now and then with an owner, so that tensors point into the bytes.
      const Value value = read_pth(*mutant, "mutant", i % 4 == 0 ? mutant : nullptr);
      if (testing::same_value(value, samples[which])) {
        ++same;
      } else if (sound) {
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
    const size_t allocated = g_allocated;
    if (allocated > std::max(kMostAtLeast, kMostPerByte * mutant->size())) {
      std::cerr << "mutant " << i << " of seed " << argv[1] << ", " << mutant->size() << " bytes, took " << allocated
                << " bytes of memory\n";
      return 1;
    }
    if (allocated > most_allocated) {
      most_allocated = allocated;
      of_size = mutant->size();
    }
  }
  std::cout << count << " mutants: " << refused << " refused, " << same << " read as before, " << different
            << " with right CRCs read as another sound value";
  if (counts) std::cout << "; most memory: " << most_allocated << " bytes for a file of " << of_size;
  std::cout << "\n";
  return 0;
}
