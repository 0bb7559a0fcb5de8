// Reads damaged .pth files: fuzz_pth SEED COUNT. A third of the mutants keep their wrong CRCs: each must be refused or
// read as the same value. The others get right CRCs, so that the damage reaches the pickle machine (flipped and moved
// bytes; or records swapped, repeated, left out, renamed, made of other records, and pickles with deep nesting, cycles
// and huge numbers): each must be refused or give a value that can be walked. No mutant may take more memory or time
// than its size explains. Every tenth mutant is one of a container of calls that share bytes, damaged in the same ways:
// each of its files is refused or read as it was. Anything else ends the program (a crash, a sanitizer's report,
// status 1).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "calls/call_store.h"
#include "pth/pth.h"
#include "pth/zip.h"
#include "pth_testing.h"
#include "temporary_folder.h"

// Of the address sanitizer; without it nothing is counted.
extern "C" __attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                                               void (*)(const volatile void*));

namespace {

using namespace op_tools;

// The bytes that a read allocates, freed again or not: a value of some 100 bytes may stand for a single byte of a
// pickle, and vectors double. Measured most: see docs/testing.md.
constexpr size_t kMostPerByte = 600;
constexpr size_t kMostAtLeast = size_t{4} << 20;
// Mutants have some kilobytes, and a sanitizer slows everything down.
constexpr std::chrono::seconds kLongest{10};

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

// A name that leads out of a folder, or upsets whoever prints it.
std::string hostile_name(const std::string& name, std::mt19937_64& random) {
  static const std::string kParts[] = {
      "..", ".", "", "/etc", "~", "\x1b[2J", std::string(1, '\0'), "\xff\xfe", "a\\..\\b", std::string(300, 'n')};
  std::string hostile;
  for (size_t parts = 1 + random() % 4; parts > 0; --parts) hostile += kParts[random() % std::size(kParts)] + "/";
  const size_t slash = random() % 2 == 0 ? name.find('/') : name.rfind('/');
  return slash == std::string::npos ? hostile + name : name.substr(0, slash) + "/" + hostile + name.substr(slash + 1);
}

// Another archive of the same records, with right CRCs.
std::string restructure(const std::string& bytes, std::mt19937_64& random) {
  Records records = records_of(bytes);
  const auto any = [&]() -> std::pair<std::string, std::string>& { return records[random() % records.size()]; };
  for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
    switch (random() % 9) {
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
      case 5: {
        std::string& name = any().first;
        name = hostile_name(name, random);
        break;
      }
      default: {
        std::string& pickle = records.front().second;
        pickle.insert(pickle.empty() ? 0 : random() % pickle.size(), hostile_piece(random));
      }
    }
  }
  return archive_of(records);
}

// How many mutants were refused and read.
struct Tally {
  uint64_t refused = 0, same = 0, different = 0;
};

// A damaged .pth file.
class Files {
 public:
  Files() {
    for (const auto& sample : samples_) files_.push_back(testing::encode(sample));
  }

  size_t read_mutant(uint64_t number, std::mt19937_64& random, Tally& tally) const {
    const size_t which = random() % files_.size();
    const bool sound = number % 3 != 0;  // its CRCs are right
    auto mutant = std::make_shared<std::string>(number % 3 == 2 ? restructure(files_[which], random)
                                                                : testing::mutate(files_[which], random, sound));
    g_allocated = 0;
    try {
      // Now and then with an owner, so that tensors point into the bytes.
      const Value value = read_pth(*mutant, "mutant", number % 4 == 0 ? mutant : nullptr);
      if (testing::same_value(value, samples_[which])) {
        ++tally.same;
      } else if (sound) {
        ++tally.different;
        static_cast<void>(testing::same_value(value, value));  // reads every element
        describe(value);
      } else {
        throw std::runtime_error("was read as another value: " + describe(value));
      }
    } catch (const Error&) {
      ++tally.refused;
    }
    return mutant->size();
  }

 private:
  const std::vector<Value> samples_ = testing::sample_values();
  std::vector<std::string> files_;
};

// A damaged container of calls: the calls that find_calls() finds in it, and every file of theirs.
class Containers {
 public:
  Containers() {
    const auto store = CallStore::create(CaptureFormat::kContainer, folder_.path(), 0, /*dedupe=*/true);
    uint64_t id = 0;
    for (const Value& value : testing::sample_values()) {
      const CallKey key{id % 2 == 0 ? "torch.add" : "aten::mul.Tensor", id};
      ++id;
      for (const CallFile file : kFiles) store->write(key, file, 0, value);
      store->write_text(key, CallFile::kMeta, 0, "{}");
    }
    store->flush();
    path_ = store->root() + "/calls.zip";
    std::ifstream file(path_, std::ios::binary);
    bytes_ = {std::istreambuf_iterator<char>(file), {}};
    for (const auto& call : find_calls(path_).calls) {
      for (const CallFile each : kFiles) values_.emplace(name_of(*call, each), call->read(each));
    }
  }

  size_t read_mutant(uint64_t number, std::mt19937_64& random, Tally& tally) const {
    const bool sound = number % 2 == 0;
    const std::string mutant = number % 4 == 0 ? restructure(bytes_, random)
                               : sound         ? with_a_damaged_file(random)
                                               : testing::mutate(bytes_, random, false);
    std::ofstream(path_, std::ios::binary) << mutant;
    g_allocated = 0;
    try {
      const FoundCalls stored = find_calls(path_);
      for (const auto& call : stored.calls) {
        if (leads_out(call->path().substr(path_.size()))) throw std::runtime_error("has a call at " + call->path());
        for (const CallFile file : kFiles) read_file(*call, file, sound || !stored.problems.empty(), tally);
        if (call->has(CallFile::kMeta)) read_meta(*call);
      }
    } catch (const Error&) {
      ++tally.refused;
    }
    return mutant.size() * (values_.size() + 1);  // each read may use as much as the whole file explains
  }

 private:
  static constexpr CallFile kFiles[] = {CallFile::kInput, CallFile::kGradOutputs};

  // "!torch.add/3" does not.
  static bool leads_out(const std::string& name) {
    const std::string path = "/" + name.substr(1) + "/";
    return path.find("/../") != std::string::npos || path.find("/./") != std::string::npos ||
           path.find("//") != std::string::npos || path.find('\x1b') != std::string::npos ||
           path.find('\0') != std::string::npos;
  }

  // Of a call, or of bytes that calls share.
  std::string with_a_damaged_file(std::mt19937_64& random) const {
    Records records = records_of(bytes_);
    std::string& file = records[random() % records.size()].second;
    if (file.substr(0, 2) == "PK") {
      file = random() % 2 == 0 ? restructure(file, random) : testing::mutate(file, random, random() % 2 == 0);
    }
    return archive_of(records);
  }

  static std::string name_of(const StoredCall& call, CallFile file) {
    return call.path() + (file == CallFile::kInput ? " input" : " gradients");
  }

  // `renamed`: the container said that it is damaged, or its names were changed under right CRCs.
  void read_file(const StoredCall& call, CallFile file, bool renamed, Tally& tally) const {
    if (!call.has(file)) return;
    try {
      const Value value = call.read(file);
      const auto known = values_.find(name_of(call, file));
      if (known != values_.end() && testing::same_value(value, known->second)) {
        ++tally.same;
      } else if (renamed) {
        ++tally.different;
        static_cast<void>(testing::same_value(value, value));
      } else {
        throw std::runtime_error(name_of(call, file) + " was read as another value: " + describe(value));
      }
    } catch (const Error&) {
      ++tally.refused;
    }
  }

  static void read_meta(const StoredCall& call) {
    try {
      static_cast<void>(call.read_text(CallFile::kMeta));
    } catch (const Error&) {
      return;  // refused
    }
  }

  const test::TemporaryFolder folder_;
  std::string path_, bytes_;
  std::map<std::string, Value> values_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: fuzz_pth SEED COUNT\n";
    return 64;
  }
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const uint64_t count = std::strtoull(argv[2], nullptr, 10);
  const Files files;
  const Containers containers;
  const bool counts = __sanitizer_install_malloc_and_free_hooks != nullptr &&
                      __sanitizer_install_malloc_and_free_hooks(&count_allocation, &ignore_free) != 0;

  Tally of_files, of_containers;
  size_t most_allocated = 0, of_size = 0;
  std::chrono::duration<double> longest{0};
  for (uint64_t i = 0; i < count; ++i) {
    const auto began = std::chrono::steady_clock::now();
    try {
      const size_t size =
          i % 10 == 9 ? containers.read_mutant(i / 10, random, of_containers) : files.read_mutant(i, random, of_files);
      const size_t allocated = g_allocated;
      if (allocated > std::max(kMostAtLeast, kMostPerByte * size))
        throw std::runtime_error(std::to_string(size) + " bytes, took " + std::to_string(allocated) +
                                 " bytes of memory");
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      longest = std::max(longest, took);
      if (took > kLongest) throw std::runtime_error("took " + std::to_string(took.count()) + " s");
      if (allocated > most_allocated && i % 10 != 9) {
        most_allocated = allocated;
        of_size = size;
      }
    } catch (const std::exception& error) {
      std::cerr << "mutant " << i << " of seed " << argv[1] << ": " << error.what() << "\n";
      return 1;
    }
  }
  std::cout << count - count / 10 << " files: " << of_files.refused << " refused, " << of_files.same
            << " read as before, " << of_files.different << " with right CRCs read as another sound value; "
            << count / 10 << " containers, of their files " << of_containers.refused << " refused, "
            << of_containers.same << " read as before, " << of_containers.different
            << " under other names or with right CRCs; longest " << longest.count() << " s";
  if (counts) std::cout << "; most memory: " << most_allocated << " bytes for a file of " << of_size;
  std::cout << "\n";
  return 0;
}
