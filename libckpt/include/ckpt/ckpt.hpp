// libckpt for C++17 and later: header-only, over the C ABI of ckpt.h and nothing else.
//
//   std::vector<float> weights(1000);
//   int64_t step = 0;
//   ckpt::State state;
//   state.Tensor("weights", weights.data(), {1000}).Value("step", &step);
//   ckpt::Session session;          // the job, the store and the rank come from the environment
//   session.Track(state);
//   session.Restore();              // false: a fresh start
//   while (step < 10'000) {
//     Train(weights);
//     if (session.Step(++step).stop()) return session.exit_code();
//   }
//   session.Finish();
//   session.Close();
//
// Errors are exceptions of type ckpt::Error, with one exception: Step never throws because a save
// failed, since training goes on; it hands the error over in Request::error (and the library logs
// it).
//
// Values and blobs are bound to variables: the variable is read whenever the state is staged, and
// written by Restore. Everything bound (and every tensor's memory) must outlive the session; so
// must the State.
//
// A session asks for SIGTERM by default: the next Step stages, and returns STOP. Options::signals =
// 0 leaves it alone.
#ifndef CKPT_CKPT_HPP_
#define CKPT_CKPT_HPP_

#include <ckpt/ckpt.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <locale>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ckpt {
inline namespace cpp1 {

inline constexpr int kExitSuspended = CKPT_EXIT_SUSPENDED;
using Duration = std::chrono::nanoseconds;
inline constexpr Duration kForever = Duration(-1);

// ---- errors ------------------------------------------------------------------------------------
enum class ErrorCode : int32_t {
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, bool maybe_applied = false)
      : std::runtime_error(message), code_(code), maybe_applied_(maybe_applied) {}
  ErrorCode code() const { return code_; }
  // Whether what failed may have taken effect all the same.
  bool maybe_applied() const { return maybe_applied_; }

 private:
  ErrorCode code_;
  bool maybe_applied_;
};

namespace internal {

// Takes the error over; nothing if it is null.
inline std::optional<Error> Take(ckpt_error_t* error) {
  if (error == nullptr) return std::nullopt;
  const std::unique_ptr<ckpt_error_t, void (*)(ckpt_error_t*)> owner(error, &ckpt_error_free);
  return Error(static_cast<ErrorCode>(ckpt_error_code(error)), ckpt_error_message(error),
               ckpt_error_outcome(error) != 0);
}

inline void Check(ckpt_error_t* error) {
  if (std::optional<Error> taken = Take(error)) throw *taken;
}

inline int64_t Nanoseconds(Duration duration) { return duration.count(); }

}  // namespace internal

// ---- values: the JSON of docs/format/v1.md
// ---------------------------------------------------------
namespace internal {

inline std::string HexOf(uint64_t bits) {
  std::string hex(16, '0');
  for (size_t i = 16; i-- > 0; bits >>= 4) hex[i] = "0123456789abcdef"[bits & 15];
  return hex;
}

inline std::string ToJson(bool value) { return value ? "true" : "false"; }
inline std::string ToJson(int64_t value) { return std::to_string(value); }

// The fewest significant digits that read back to the same bits, and the power of ten of the first
// one. `value` is positive and finite. Works in every locale.
inline std::pair<std::string, int> ShortestDigits(double value) {
  char text[40];
  for (int precision = 0;; ++precision) {
    std::snprintf(text, sizeof text, "%.*e", precision, value);
    if (precision == 16 || std::strtod(text, nullptr) == value) break;
  }
  const std::string all = text;
  const size_t e = all.find('e');
  std::string digits;
  for (const char c : all.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  return {digits, std::stoi(all.substr(e + 1))};
}

// As Python's repr spells it.
inline std::string ToJson(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (!std::isfinite(value) || (value == 0 && std::signbit(value)))
    return "{\"$f\":\"" + HexOf(bits) + "\"}";
  if (value == 0) return "0.0";
  const std::string sign = value < 0 ? "-" : "";
  auto [digits, exponent] = ShortestDigits(value < 0 ? -value : value);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string power = std::to_string(exponent < 0 ? -exponent : exponent);
    if (power.size() < 2) power.insert(0, "0");
    return sign + digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "") +
           (exponent < 0 ? "e-" : "e+") + power;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.insert(static_cast<size_t>(exponent + 1), ".");
}

inline constexpr std::string_view kEscapes = "b\bf\fn\nr\rt\t\"\"\\\\";  // letter, character, …

inline std::string ToJson(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    size_t escape = 1;
    while (escape < kEscapes.size() && kEscapes[escape] != c) escape += 2;
    if (escape < kEscapes.size()) {
      json += {'\\', kEscapes[escape - 1]};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += "\\u00" + HexOf(static_cast<unsigned char>(c)).substr(14);
    } else {
      json += c;
    }
  }
  return json + "\"";
}

[[noreturn]] inline void WrongType(const std::string& json, const char* wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              "the stored value " + json.substr(0, 60) + " is no " + wanted);
}

inline void FromJson(const std::string& json, bool* out) {
  if (json != "true" && json != "false") WrongType(json, "boolean");
  *out = json == "true";
}
inline void FromJson(const std::string& json, int64_t* out) {
  const std::from_chars_result read = std::from_chars(json.data(), json.data() + json.size(), *out);
  if (read.ec != std::errc() || read.ptr != json.data() + json.size())
    WrongType(json, "integer of 64 bits");
}
inline void FromJson(const std::string& json, double* out) {
  if (json.compare(0, 7, "{\"$f\":\"") == 0 && json.size() == 25) {
    uint64_t bits = 0;
    std::from_chars(json.data() + 7, json.data() + 23, bits, 16);
    std::memcpy(out, &bits, sizeof bits);
    return;
  }
  std::istringstream stream(json);
  stream.imbue(std::locale::classic());
  if (!(stream >> *out) || stream.peek() != std::istringstream::traits_type::eof())
    WrongType(json, "float");
}
inline void FromJson(const std::string& json, std::string* out) {
  if (json.size() < 2 || json.front() != '"') WrongType(json, "string");
  out->clear();
  for (size_t i = 1; i + 1 < json.size(); ++i) {
    if (json[i] != '\\') {
      *out += json[i];
    } else if (json[++i] == 'u') {
      int code = 0;  // below 0x20: nothing else is escaped by number
      std::from_chars(json.data() + i + 1, json.data() + i + 5, code, 16);
      *out += static_cast<char>(code);
      i += 4;
    } else {
      const size_t letter = kEscapes.find(json[i]);
      *out += kEscapes[letter + (letter % 2 == 0 ? 1 : 0)];
    }
  }
}

}  // namespace internal

// ---- state -------------------------------------------------------------------------------------
enum class DType : int32_t {
  kBool = CKPT_BOOL,
  kU8 = CKPT_U8,
  kI8 = CKPT_I8,
  kU16 = CKPT_U16,
  kI16 = CKPT_I16,
  kU32 = CKPT_U32,
  kI32 = CKPT_I32,
  kU64 = CKPT_U64,
  kI64 = CKPT_I64,
  kF16 = CKPT_F16,
  kBF16 = CKPT_BF16,
  kF32 = CKPT_F32,
  kF64 = CKPT_F64,
  kF8E4M3 = CKPT_F8_E4M3,
  kF8E5M2 = CKPT_F8_E5M2,
  kC64 = CKPT_C64,
  kC128 = CKPT_C128,
  kF4x2 = CKPT_F4X2
};

template <typename T>
constexpr DType DTypeOf() {
  using V = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<V, bool>)
    return DType::kBool;
  else if constexpr (std::is_same_v<V, float>)
    return DType::kF32;
  else if constexpr (std::is_same_v<V, double>)
    return DType::kF64;
  else {
    static_assert(std::is_integral_v<V>, "no dtype for this type: name it with TensorSpec::dtype");
    constexpr int kUnsigned[] = {0, CKPT_U8, CKPT_U16, 0, CKPT_U32, 0, 0, 0, CKPT_U64};
    constexpr int kSigned[] = {0, CKPT_I8, CKPT_I16, 0, CKPT_I32, 0, 0, 0, CKPT_I64};
    return static_cast<DType>(std::is_signed_v<V> ? kSigned[sizeof(V)] : kUnsigned[sizeof(V)]);
  }
}

enum class Placement : int32_t {
  kUnsharded = CKPT_UNSHARDED,    // one owner
  kReplicated = CKPT_REPLICATED,  // equal on all ranks: written once
  kSharded = CKPT_SHARDED,        // this rank holds a box of the whole
  kPerRank = CKPT_PER_RANK        // every rank has its own
};
enum class Scope : int32_t {
  kShared = CKPT_SHARED_VALUE,  // the same on all ranks
  kRank = CKPT_RANK_VALUE       // every rank has its own
};

// Everything that a tensor can say about itself.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  void* data = nullptr;
  std::vector<uint64_t> shape;  // of the whole tensor
  Placement placement = Placement::kUnsharded;
  std::vector<uint64_t> local_shape;   // empty: the whole
  std::vector<uint64_t> local_offset;  // empty: zeros
  std::vector<int64_t> strides;        // in elements; empty: row-major
  uint32_t device = 0;
  void* stream = nullptr;
  std::string tied_to;
  bool frozen = false;
};

// What a session saves and restores. Copies no bytes. Movable; must outlive the session that tracks
// it.
class State {
 public:
  State() : handle_(nullptr, &ckpt_state_free), bindings_(std::make_unique<Bindings>()) {
    ckpt_state_t* handle = nullptr;
    internal::Check(ckpt_state_create(&handle));
    handle_.reset(handle);
  }

  template <typename T>
  State& Tensor(const std::string& name, T* data, std::vector<uint64_t> shape,
                Placement placement = Placement::kUnsharded) {
    TensorSpec spec;
    spec.name = name;
    spec.dtype = DTypeOf<T>();
    spec.data = data;
    spec.shape = std::move(shape);
    spec.placement = placement;
    return Tensor(spec);
  }
  State& Tensor(const TensorSpec& spec) {
    const auto whole = [](const auto& list) { return list.empty() ? nullptr : list.data(); };
    ckpt_tensor_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.name = spec.name.c_str();
    desc.dtype = static_cast<ckpt_dtype_t>(spec.dtype);
    desc.placement = static_cast<ckpt_placement_t>(spec.placement);
    desc.ndim = static_cast<uint32_t>(spec.shape.size());
    desc.global_shape = spec.shape.data();
    desc.local_shape = whole(spec.local_shape);
    desc.local_offset = whole(spec.local_offset);
    desc.strides = whole(spec.strides);
    desc.data = spec.data;
    desc.device = spec.device;
    desc.stream = spec.stream;
    desc.tied_to = spec.tied_to.empty() ? nullptr : spec.tied_to.c_str();
    desc.frozen = spec.frozen ? 1 : 0;
    internal::Check(ckpt_state_add_tensor(handle_.get(), &desc));
    return *this;
  }

  // Binds an integer, a boolean, a double or a std::string.
  template <typename T>
  State& Value(const std::string& name, T* variable, Scope scope = Scope::kShared) {
    using Stored =
        std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int64_t, T>;
    static_assert(std::is_same_v<Stored, bool> || std::is_same_v<Stored, int64_t> ||
                      std::is_same_v<Stored, double> || std::is_same_v<Stored, std::string>,
                  "bind an integer, a bool, a double or a std::string; anything else is a Blob");
    Binding binding;
    binding.write = [name, variable, scope](ckpt_state_t* state) {
      if constexpr (std::is_same_v<T, uint64_t>) {
        if (*variable > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
          throw Error(ErrorCode::kOutOfRange,
                      "value '" + name + "' is beyond 63 bits; bind it as a Blob");
      }
      const std::string json = internal::ToJson(static_cast<const Stored&>(Stored(*variable)));
      internal::Check(ckpt_state_add_value(state, name.c_str(), static_cast<ckpt_scope_t>(scope),
                                           json.c_str()));
    };
    binding.read = [name, variable](ckpt_reader_t* reader) {
      const char* json = nullptr;
      internal::Check(ckpt_reader_value(reader, name.c_str(), &json));
      Stored stored{};
      internal::FromJson(json, &stored);
      *variable = static_cast<T>(stored);
      if constexpr (std::is_same_v<Stored, int64_t>) {
        if (static_cast<int64_t>(*variable) != stored)
          internal::WrongType(json, "number that fits its variable");
      }
    };
    return Bind(std::move(binding));
  }

  // Binds a string of bytes, or any trivially copyable object (std::mt19937, a struct of numbers).
  State& Blob(const std::string& name, std::string* bytes, Scope scope = Scope::kShared) {
    Binding binding;
    binding.write = [name, bytes, scope](ckpt_state_t* state) {
      SetBlob(state, name, scope, bytes->data(), bytes->size());
    };
    binding.read = [name, bytes](ckpt_reader_t* reader) { *bytes = GetBlob(reader, name); };
    return Bind(std::move(binding));
  }
  template <typename T>
  State& Blob(const std::string& name, T* object, Scope scope = Scope::kShared) {
    static_assert(std::is_trivially_copyable_v<T>, "a Blob is a std::string or trivially copyable");
    Binding binding;
    binding.write = [name, object, scope](ckpt_state_t* state) {
      SetBlob(state, name, scope, object, sizeof(T));
    };
    binding.read = [name, object](ckpt_reader_t* reader) {
      const std::string_view bytes = GetBlob(reader, name);
      if (bytes.size() != sizeof(T))
        throw Error(ErrorCode::kInvalidArgument,
                    "blob '" + name + "' holds " + std::to_string(bytes.size()) +
                        " bytes, its variable " + std::to_string(sizeof(T)));
      std::memcpy(static_cast<void*>(object), bytes.data(), sizeof(T));
    };
    return Bind(std::move(binding));
  }

  ckpt_state_t* handle() const { return handle_.get(); }

 private:
  friend class Session;
  friend class Reader;
  struct Binding {
    std::function<void(ckpt_state_t*)> write;
    std::function<void(ckpt_reader_t*)> read;
  };
  struct Bindings {
    std::vector<Binding> list;
    std::string error;  // what the last refresh failed with
  };

  static void SetBlob(ckpt_state_t* state, const std::string& name, Scope scope, const void* data,
                      size_t size) {
    internal::Check(ckpt_state_add_blob(state, name.c_str(), static_cast<ckpt_scope_t>(scope),
                                        "application/octet-stream", data, size));
  }
  static std::string_view GetBlob(ckpt_reader_t* reader, const std::string& name) {
    const void* data = nullptr;
    size_t size = 0;
    internal::Check(ckpt_reader_blob(reader, name.c_str(), &data, &size));
    return {static_cast<const char*>(data), size};
  }
  State& Bind(Binding binding) {
    binding.write(handle_.get());
    bindings_->list.push_back(std::move(binding));
    return *this;
  }
  // The library's callback before each staging.
  static int32_t Refresh(void* ctx, ckpt_state_t* state) {
    auto* bindings = static_cast<Bindings*>(ctx);
    try {
      for (const Binding& binding : bindings->list) binding.write(state);
      return 0;
    } catch (const std::exception& error) {
      bindings->error = error.what();
      return 1;
    }
  }

  std::unique_ptr<ckpt_state_t, void (*)(ckpt_state_t*)> handle_;
  std::unique_ptr<Bindings> bindings_;
};

// ---- session
// -------------------------------------------------------------------------------------
enum class Level : int32_t {
  kNone = CKPT_LEVEL_NONE,
  kStaged = CKPT_LEVEL_STAGED,           // this rank's copy is consistent
  kStagedGang = CKPT_LEVEL_STAGED_GANG,  // all ranks have one
  kShared = CKPT_LEVEL_SHARED            // durable
};

enum class Phase : int32_t {
  kTrain = CKPT_PHASE_TRAIN,
  kSetup = CKPT_PHASE_SETUP,
  kCompile = CKPT_PHASE_COMPILE,
  kEvaluation = CKPT_PHASE_EVALUATION
};

struct Request {
  enum class Kind : int32_t {
    kNone = CKPT_REQUEST_NONE,
    kSave = CKPT_REQUEST_SAVE,
    kStop = CKPT_REQUEST_STOP
  };
  Kind kind = Kind::kNone;
  uint64_t boundary = 0;
  int64_t deadline_boottime_ns = 0;
  std::optional<Error> error;  // a save failed or was refused; training goes on

  bool stop() const { return kind == Kind::kStop; }
  bool saved() const { return kind == Kind::kSave; }
};

struct Options {
  std::string job;                       // empty: CKPT_JOB, else "default"
  std::string store;                     // empty: CKPT_STORE, else "./ckpt/<job>"
  std::optional<uint32_t> rank;          // none: RANK, else 0
  uint32_t world_size = 0;               // 0: WORLD_SIZE, else 1
  uint64_t save_every = 0;               // steps between the saves that Step makes; 0 none
  // What is removed after a save has become durable; 0: CKPT_KEEP_LAST, …, else no such rule.
  uint64_t keep_last = 0, keep_every = 0, keep_hours = 0;
  uint64_t signals = uint64_t{1} << 15;  // bit n: signal n asks for a stop; SIGTERM by default
  uint32_t copy_threads = 0;
  // For world_size > 1 without ckpt-run: gathers `n` bytes of every rank, in rank order; false is
  // failure.
  std::function<bool(const void* in, size_t n, void* out, int64_t deadline_boottime_ns)> allgather;
  std::function<void(int level, const char* message)> log;  // empty: warnings to stderr
};

// A save in progress. Dropping it lets it go on.
class Save {
 public:
  explicit Save(ckpt_save_t* handle) : handle_(handle, &ckpt_save_free) {}

  // False once the time is over, with the save still going on. Throws what the save failed with.
  bool Wait(Level level, Duration timeout = kForever) {
    std::optional<Error> error = internal::Take(ckpt_save_wait(
        handle_.get(), static_cast<ckpt_level_t>(level), internal::Nanoseconds(timeout)));
    if (!error) return true;
    if (error->code() == ErrorCode::kDeadlineExceeded) return false;
    throw *error;
  }
  Level level() const {
    ckpt_level_t level = CKPT_LEVEL_NONE;
    uint64_t done = 0, total = 0;
    internal::Check(ckpt_save_progress(handle_.get(), &level, &done, &total));
    return static_cast<Level>(level);
  }
  void Cancel() { internal::Check(ckpt_save_cancel(handle_.get())); }
  ckpt_save_t* handle() const { return handle_.get(); }

 private:
  std::unique_ptr<ckpt_save_t, void (*)(ckpt_save_t*)> handle_;
};

// An opened checkpoint.
class Reader {
 public:
  explicit Reader(ckpt_reader_t* handle) : handle_(handle, &ckpt_reader_close) {}

  // Without a session: of a job's directory or of one checkpoint, also while the job runs
  // elsewhere.
  static Reader OpenPath(const std::string& path, const std::string& selector = "latest",
                         uint32_t rank = 0) {
    ckpt_reader_t* reader = nullptr;
    internal::Check(ckpt_reader_open_path(path.c_str(), selector.c_str(), rank, &reader));
    return Reader(reader);
  }

  int64_t step() const {
    int64_t step = 0;
    internal::Check(ckpt_reader_step(handle_.get(), &step));
    return step;
  }
  // Tensors in place, then every bound variable. Throws before a byte is written if the state does
  // not fit.
  void Load(State& state) {
    internal::Check(ckpt_reader_load(handle_.get(), state.handle()));
    for (const State::Binding& binding : state.bindings_->list) binding.read(handle_.get());
  }
  // The tensors that `state` has, in place; bound variables stay. The checkpoint may hold more.
  void LoadPart(State& state) {
    internal::Check(ckpt_reader_load_part(handle_.get(), state.handle()));
  }
  // JSON: tensors, values and blobs by name; see ckpt.h.
  std::string Contents() const {
    const char* json = nullptr;
    internal::Check(ckpt_reader_contents(handle_.get(), &json));
    return json;
  }
  // The value's JSON.
  std::string Value(const std::string& name) const {
    const char* json = nullptr;
    internal::Check(ckpt_reader_value(handle_.get(), name.c_str(), &json));
    return json;
  }
  std::string Blob(const std::string& name) const {
    return std::string(State::GetBlob(handle_.get(), name));
  }

 private:
  std::unique_ptr<ckpt_reader_t, void (*)(ckpt_reader_t*)> handle_;
};

// ---- communicators
// -------------------------------------------------------------------------------
class KeyValue {
 public:
  explicit KeyValue(ckpt_kv_t* handle) : handle_(handle) {}
  void Set(const std::string& key, std::string_view value) {
    internal::Check(ckpt_kv_set(handle_, key.c_str(), value.data(), value.size()));
  }
  // Blocks until some rank has set `key`.
  std::string Wait(const std::string& key, Duration timeout) {
    std::string value(4096, '\0');
    for (;;) {
      size_t size = value.size();
      internal::Check(
          ckpt_kv_wait(handle_, key.c_str(), value.data(), &size, internal::Nanoseconds(timeout)));
      const bool whole = size <= value.size();
      value.resize(size);
      if (whole) return value;
    }
  }

 private:
  ckpt_kv_t* handle_;
};

// What the library takes down before the GPUs are given up, and builds again. Each may throw: that
// is failure.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string name() const = 0;
  virtual void Quiesce(int64_t deadline_boottime_ns) = 0;
  virtual void Down(int64_t deadline_boottime_ns) = 0;
  virtual void Up(const std::string& fresh_id, KeyValue& kv, int64_t deadline_boottime_ns) = 0;
  virtual void Verify(int64_t deadline_boottime_ns) = 0;
};

// Unregisters (and takes the communicator down) when it goes.
class Registration {
 public:
  explicit Registration(ckpt_comm_t* handle) : handle_(handle) {}
  Registration(Registration&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Registration() {
    if (handle_ != nullptr) internal::Take(ckpt_comm_unregister(handle_));
  }
  void Unregister() { internal::Check(ckpt_comm_unregister(std::exchange(handle_, nullptr))); }

 private:
  ckpt_comm_t* handle_;
};

class Session {
 public:
  Session() : Session(Options()) {}
  explicit Session(Options options) : callbacks_(std::make_unique<Callbacks>()) {
    callbacks_->allgather = std::move(options.allgather);
    callbacks_->log = std::move(options.log);
    ckpt_collective_t collective{};
    collective.struct_size = sizeof collective;
    collective.ctx = callbacks_.get();
    collective.allgather = &Callbacks::Allgather;
    ckpt_session_options_t raw{};
    raw.struct_size = sizeof raw;
    raw.job = options.job.empty() ? nullptr : options.job.c_str();
    raw.store = options.store.empty() ? nullptr : options.store.c_str();
    raw.rank = options.rank.value_or(CKPT_UNSET_RANK);
    raw.world_size = options.world_size;
    raw.collective = callbacks_->allgather ? &collective : nullptr;
    raw.signals = options.signals;
    raw.save_every = options.save_every;
    raw.keep_copy_threads = options.copy_threads;
    raw.keep_last = options.keep_last;
    raw.keep_every = options.keep_every;
    raw.keep_hours = options.keep_hours;
    raw.log = callbacks_->log ? &Callbacks::Log : nullptr;
    raw.log_ctx = callbacks_.get();
    internal::Check(ckpt_session_open(&raw, &handle_));
  }
  Session(Session&& other) noexcept
      : callbacks_(std::move(other.callbacks_)),
        handle_(std::exchange(other.handle_, nullptr)),
        state_(std::exchange(other.state_, nullptr)),
        stopped_(other.stopped_) {}
  Session& operator=(Session&&) = delete;
  // Closes; what did not become durable in time is logged as an error. Call Close to learn it as an
  // exception.
  ~Session() {
    if (handle_ != nullptr)
      internal::Take(ckpt_session_close(handle_, internal::Nanoseconds(kCloseTimeout)));
  }

  // Declares what Step saves; before the first Step, on every rank.
  void Track(State& state) {
    state_ = &state;
    internal::Check(
        ckpt_session_track(handle_, state.handle(), &State::Refresh, state.bindings_.get()));
  }
  // Loads what this session resumes from into the tracked state. False: there is nothing, a fresh
  // start.
  bool Restore(const std::string& selector = "") {
    if (state_ == nullptr)
      throw Error(ErrorCode::kFailedPrecondition,
                  "Restore before Track: there is no state to load into");
    std::optional<Reader> reader = Open(selector);
    if (reader) reader->Load(*state_);
    return reader.has_value();
  }
  // The step boundary; equally often on all ranks.
  Request Step(int64_t user_step) {
    ckpt_request_t raw{};
    Request request;
    if (ckpt_error_t* error = ckpt_session_step(handle_, user_step, &raw))
      request.error = internal::Take(error);
    request.kind = static_cast<Request::Kind>(raw.kind);
    request.boundary = raw.boundary;
    request.deadline_boottime_ns = raw.deadline_boottime_ns;
    stopped_ = stopped_ || request.stop();
    return request;
  }
  void SetPhase(Phase phase, Duration expected = Duration(0)) {
    internal::Check(ckpt_session_phase(handle_, static_cast<ckpt_phase_t>(phase),
                                       internal::Nanoseconds(expected)));
  }
  // The training is complete.
  void Finish() { internal::Check(ckpt_session_finish(handle_)); }
  // Waits until all saves are durable; throws what is not.
  void Close(Duration timeout = kCloseTimeout) {
    internal::Check(
        ckpt_session_close(std::exchange(handle_, nullptr), internal::Nanoseconds(timeout)));
  }
  // What main returns: 75 after a STOP, else 0.
  int exit_code() const { return stopped_ ? kExitSuspended : 0; }

  // Saves now; all ranks call it at the same boundary.
  Save BeginSave(int64_t step, bool overlap = false, Duration slot_timeout = Duration(0)) {
    ckpt_save_options_t raw{};
    raw.struct_size = sizeof raw;
    raw.step = step;
    raw.overlap = overlap ? 1 : 0;
    raw.timeout_ns = internal::Nanoseconds(slot_timeout);
    ckpt_save_t* save = nullptr;
    internal::Check(ckpt_save_begin(handle_, &raw, &save));
    return Save(save);
  }
  // Before the update that changes a state whose save overlaps.
  void Fence() { internal::Check(ckpt_save_fence(handle_)); }

  // Nothing if there is no checkpoint at all.
  std::optional<Reader> Open(const std::string& selector = "") {
    ckpt_reader_t* reader = nullptr;
    std::optional<Error> error =
        internal::Take(ckpt_reader_open(handle_, selector.c_str(), &reader));
    if (!error) return Reader(reader);
    if (error->code() == ErrorCode::kNotFound) return std::nullopt;
    throw *error;
  }
  // JSON.
  std::string ListCheckpoints() {
    const char* json = nullptr;
    internal::Check(ckpt_reader_list(handle_, &json));
    return json;
  }
  std::string Describe() {
    const char* json = nullptr;
    internal::Check(ckpt_session_describe(handle_, &json));
    return json;
  }

  // Brings it up; every rank, in the same order. `communicator` must outlive the registration.
  Registration Register(Communicator& communicator) {
    const std::string name = communicator.name();
    ckpt_comm_ops_t ops{};
    ops.struct_size = sizeof ops;
    ops.ctx = &communicator;
    ops.name = name.c_str();
    ops.quiesce = [](void* ctx, int64_t at) { return Try([&] { Of(ctx)->Quiesce(at); }); };
    ops.down = [](void* ctx, int64_t at) { return Try([&] { Of(ctx)->Down(at); }); };
    ops.up = [](void* ctx, const char* id, ckpt_kv_t* raw, int64_t at) {
      KeyValue kv(raw);
      return Try([&] { Of(ctx)->Up(id, kv, at); });
    };
    ops.verify = [](void* ctx, int64_t at) { return Try([&] { Of(ctx)->Verify(at); }); };
    ckpt_comm_t* handle = nullptr;
    internal::Check(ckpt_comm_register(handle_, &ops, &handle));
    return Registration(handle);
  }

  ckpt_session_t* handle() const { return handle_; }

  static constexpr Duration kCloseTimeout = std::chrono::minutes(10);

 private:
  struct Callbacks {
    std::function<bool(const void*, size_t, void*, int64_t)> allgather;
    std::function<void(int, const char*)> log;
    static int32_t Allgather(void* ctx, const void* in, size_t n, void* out,
                             int64_t deadline_boottime_ns) {
      bool done = false;
      const int32_t failed = Try([&] {
        done = static_cast<Callbacks*>(ctx)->allgather(in, n, out, deadline_boottime_ns);
      });
      return failed != 0 || !done ? 1 : 0;
    }
    static void Log(void* ctx, int32_t level, const char* message) {
      Try([&] { static_cast<Callbacks*>(ctx)->log(level, message); });
    }
  };

  static Communicator* Of(void* ctx) { return static_cast<Communicator*>(ctx); }
  template <typename Fn>
  static int32_t Try(Fn&& fn) noexcept {
    try {
      fn();
      return 0;
    } catch (...) {
      return 1;
    }
  }

  std::unique_ptr<Callbacks> callbacks_;
  ckpt_session_t* handle_ = nullptr;
  State* state_ = nullptr;
  bool stopped_ = false;
};

// The NCCL communicators of a rank, as ckpt.h has them: declared, connected, gone with this.
class Nccl {
 public:
  // `device`: of CUDA. `config`: the world's ncclConfig_t, or null.
  explicit Nccl(Session& session, uint32_t device = 0, const void* config = nullptr) {
    internal::Check(ckpt_nccl_create(session.handle(), device + 1, config, &handle_));
  }
  ~Nccl() {
    if (handle_ != nullptr) internal::Take(ckpt_nccl_close(handle_));
  }
  Nccl(Nccl&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Nccl& operator=(Nccl&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  uint32_t AddSplit(const std::string& name, uint32_t parent, int color, int key,
                    const void* config = nullptr) {
    const ckpt_nccl_split_t split{sizeof split, name.c_str(), parent, color, key, config};
    uint32_t index = 0;
    internal::Check(ckpt_nccl_add_split(handle_, &split, &index));
    return index;
  }
  void AddStream(void* stream) { internal::Check(ckpt_nccl_add_stream(handle_, stream)); }
  void AddBuffer(uint32_t index, void* memory, uint64_t bytes) {
    internal::Check(ckpt_nccl_add_buffer(handle_, index, memory, bytes, -1));
  }
  void AddWindow(uint32_t index, void* memory, uint64_t bytes, int flags) {
    internal::Check(ckpt_nccl_add_buffer(handle_, index, memory, bytes, flags));
  }
  void Graph(uint32_t index, const std::string& graph, bool held) {
    internal::Check(ckpt_nccl_graph(handle_, index, graph.c_str(), held ? 1 : 0));
  }
  void Connect() { internal::Check(ckpt_nccl_connect(handle_)); }
  // ncclComm_t; null while down.
  void* comm(uint32_t index = 0) const {
    void* comm = nullptr;
    internal::Check(ckpt_nccl_handle(handle_, index, &comm));
    return comm;
  }
  // ncclWindow_t; null while down.
  void* window(const void* memory) const {
    void* window = nullptr;
    internal::Check(ckpt_nccl_window(handle_, memory, &window));
    return window;
  }
  // JSON: whether they can go down and come back, and why not.
  std::string Report() const {
    const char* json = nullptr;
    internal::Check(ckpt_nccl_report(handle_, &json));
    return json;
  }
  void Close() { internal::Check(ckpt_nccl_close(std::exchange(handle_, nullptr))); }

 private:
  ckpt_nccl_t* handle_ = nullptr;
};

}  // namespace cpp1
}  // namespace ckpt
#endif  // CKPT_CKPT_HPP_
