// libckpt._core: the C ABI as a Python module, and nothing more. What is tracked, and how, is
// decided in Python; tensors come as addresses.
//
// I1  The GIL is released around every call into the library: each of them may block, log or call
// back.
// I2  A callback into Python takes the GIL for itself. An exception that it raises is kept and
// raised by the call that it was made from, instead of the error that the library makes of it.
// I3  What a session uses by address (the tracked state, callbacks) is kept alive by its object.
#include <ckpt/ckpt.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "integrations/torch/errors.h"
#include "integrations/torch/module.h"

namespace nb = nanobind;

namespace {

using ckpt_python::Check;
using ckpt_python::Pending;
using ckpt_python::ToPython;
using ckpt_python::WithoutGil;

using Numbers = std::vector<uint64_t>;

constexpr double kNsPerSecond = 1e9;
constexpr double kSecondsMax = 9e9;  // what fits into int64 nanoseconds

// None: no limit.
int64_t ToNs(const std::optional<double>& seconds) {
  if (!seconds || *seconds > kSecondsMax) return -1;
  return *seconds <= 0 ? 0 : static_cast<int64_t>(*seconds * kNsPerSecond);
}

// ---- state
// ----------------------------------------------------------------------------------------

class State {
 public:
  State() {
    Check(WithoutGil([&] { return ckpt_state_create(&state_); }));
  }
  ~State() { ckpt_state_free(state_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void AddTensor(const std::string& name, int dtype, int placement, const Numbers& shape,
                 const std::optional<Numbers>& local_shape,
                 const std::optional<Numbers>& local_offset,
                 const std::optional<std::vector<int64_t>>& strides, uintptr_t data,
                 const std::optional<std::string>& tied_to) {
    const size_t ndim = shape.size();
    if ((local_shape && local_shape->size() != ndim) ||
        (local_offset && local_offset->size() != ndim) || (strides && strides->size() != ndim))
      throw nb::value_error("shape, local_shape, local_offset and strides differ in length");
    ckpt_tensor_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.name = name.c_str();
    desc.dtype = static_cast<ckpt_dtype_t>(dtype);
    desc.placement = static_cast<ckpt_placement_t>(placement);
    desc.ndim = static_cast<uint32_t>(ndim);
    desc.global_shape = shape.data();
    desc.local_shape = local_shape ? local_shape->data() : nullptr;
    desc.local_offset = local_offset ? local_offset->data() : nullptr;
    desc.strides = strides ? strides->data() : nullptr;
    desc.data = reinterpret_cast<void*>(data);  // NOLINT: an address is what Python has
    desc.tied_to = tied_to ? tied_to->c_str() : nullptr;
    Check(WithoutGil([&] { return ckpt_state_add_tensor(state_, &desc); }));
  }

  void MoveTensor(const std::string& name, uintptr_t data) {
    Check(WithoutGil([&] {
      return ckpt_state_move_tensor(state_, name.c_str(), reinterpret_cast<void*>(data));  // NOLINT
    }));
  }

  void AddValue(const std::string& name, bool per_rank, const std::string& json) {
    const ckpt_scope_t scope = per_rank ? CKPT_RANK_VALUE : CKPT_SHARED_VALUE;
    Check(WithoutGil(
        [&] { return ckpt_state_add_value(state_, name.c_str(), scope, json.c_str()); }));
  }

  void AddBlob(const std::string& name, bool per_rank, const std::string& media_type,
               const nb::bytes& bytes) {
    const ckpt_scope_t scope = per_rank ? CKPT_RANK_VALUE : CKPT_SHARED_VALUE;
    const void* data = bytes.data();
    const size_t size = bytes.size();
    Check(WithoutGil([&] {
      return ckpt_state_add_blob(state_, name.c_str(), scope, media_type.c_str(), data, size);
    }));
  }

  ckpt_state_t* get() const { return state_; }

 private:
  ckpt_state_t* state_ = nullptr;
};

// ---- saves and readers
// ----------------------------------------------------------------------------

class Save {
 public:
  Save(ckpt_save_t* save, nb::object session) : save_(save), session_(std::move(session)) {}
  ~Save() { ckpt_save_free(save_); }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  void Wait(int level, const std::optional<double>& timeout) {
    const auto wanted = static_cast<ckpt_level_t>(level);
    const int64_t ns = ToNs(timeout);
    Check(WithoutGil([&] { return ckpt_save_wait(save_, wanted, ns); }));
  }
  std::tuple<int, uint64_t, uint64_t> Progress() {
    ckpt_level_t level = CKPT_LEVEL_NONE;
    uint64_t done = 0, total = 0;
    Check(WithoutGil([&] { return ckpt_save_progress(save_, &level, &done, &total); }));
    return {static_cast<int>(level), done, total};
  }
  void Cancel() {
    Check(WithoutGil([&] { return ckpt_save_cancel(save_); }));
  }

 private:
  ckpt_save_t* save_;
  nb::object session_;
};

class Reader {
 public:
  Reader(ckpt_reader_t* reader, nb::object session)
      : reader_(reader), session_(std::move(session)) {}
  ~Reader() { Close(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  int64_t Step() {
    int64_t step = 0;
    Check(WithoutGil([&] { return ckpt_reader_step(reader_, &step); }));
    return step;
  }
  void Load(State& state) {
    Check(WithoutGil([&] { return ckpt_reader_load(reader_, state.get()); }));
  }
  void LoadPart(State& state) {
    Check(WithoutGil([&] { return ckpt_reader_load_part(reader_, state.get()); }));
  }
  std::string Contents() {
    const char* json = nullptr;
    Check(WithoutGil([&] { return ckpt_reader_contents(reader_, &json); }));
    return json;
  }
  std::optional<std::string> Value(const std::string& name) {
    const char* json = nullptr;
    ckpt_error_t* error =
        WithoutGil([&] { return ckpt_reader_value(reader_, name.c_str(), &json); });
    if (IsMissing(error)) return std::nullopt;
    return std::string(json);
  }
  nb::object Blob(const std::string& name) {
    const void* bytes = nullptr;
    size_t size = 0;
    ckpt_error_t* error =
        WithoutGil([&] { return ckpt_reader_blob(reader_, name.c_str(), &bytes, &size); });
    if (IsMissing(error)) return nb::none();
    return nb::bytes(bytes, size);
  }
  void Close() {
    ckpt_reader_close(reader_);
    reader_ = nullptr;
  }

 private:
  static bool IsMissing(ckpt_error_t* error) {
    constexpr int32_t kNotFound = 5;
    if (ckpt_error_code(error) == kNotFound) {
      ckpt_error_free(error);
      return true;
    }
    Check(error);
    return false;
  }

  ckpt_reader_t* reader_;
  nb::object session_;
};

// ---- communicators
// -------------------------------------------------------------------------------

class KeyValue {
 public:
  explicit KeyValue(ckpt_kv_t* kv) : kv_(kv) {}
  void Set(const std::string& key, const nb::bytes& value) {
    const void* data = value.data();
    const size_t size = value.size();
    ckpt_kv_t* kv = Live();
    Check(WithoutGil([&] { return ckpt_kv_set(kv, key.c_str(), data, size); }));
  }
  nb::bytes Wait(const std::string& key, const std::optional<double>& timeout) {
    ckpt_kv_t* kv = Live();
    const int64_t ns = ToNs(timeout);
    std::string value(4096, '\0');
    for (;;) {
      size_t size = value.size();
      Check(WithoutGil([&] { return ckpt_kv_wait(kv, key.c_str(), value.data(), &size, ns); }));
      const bool whole = size <= value.size();
      value.resize(size);
      if (whole) return nb::bytes(value.data(), value.size());
    }
  }
  void End() { kv_ = nullptr; }

 private:
  ckpt_kv_t* Live() const {
    if (kv_ == nullptr) throw nb::value_error("the key-value channel is valid during up only");
    return kv_;
  }
  ckpt_kv_t* kv_;
};

struct Communicator {
  Pending* pending = nullptr;
  nb::object quiesce, down, up, verify;
  ckpt_comm_t* comm = nullptr;

  static int32_t Quiesce(void* ctx, int64_t deadline_ns) {
    auto* self = static_cast<Communicator*>(ctx);
    return self->pending->Guard([&] { self->quiesce(deadline_ns); });
  }
  static int32_t Down(void* ctx, int64_t deadline_ns) {
    auto* self = static_cast<Communicator*>(ctx);
    return self->pending->Guard([&] { self->down(deadline_ns); });
  }
  static int32_t Up(void* ctx, const char* fresh_id, ckpt_kv_t* kv, int64_t deadline_ns) {
    auto* self = static_cast<Communicator*>(ctx);
    return self->pending->Guard([&] {
      nb::object keys = nb::cast(new KeyValue(kv), nb::rv_policy::take_ownership);
      struct Ender {
        KeyValue* keys;
        ~Ender() { keys->End(); }
      } ender{nb::cast<KeyValue*>(keys)};
      self->up(fresh_id, keys, deadline_ns);
    });
  }
  static int32_t Verify(void* ctx, int64_t deadline_ns) {
    auto* self = static_cast<Communicator*>(ctx);
    return self->pending->Guard([&] { self->verify(deadline_ns); });
  }
};

// Asked at the fence of an overlapped save.
struct Changed {
  Pending* pending = nullptr;
  nb::object ask;
  bool asked = false;

  static int32_t Ask(void* ctx) {
    auto* self = static_cast<Changed*>(ctx);
    bool changed = false;
    self->asked = true;
    const int32_t failed = self->pending->Guard([&] { changed = nb::cast<bool>(self->ask()); });
    return failed != 0 || changed ? 1 : 0;
  }
};

// ---- session
// -------------------------------------------------------------------------------------

class Session {
 public:
  Session(const std::optional<std::string>& job, const std::optional<std::string>& store,
          const std::optional<uint32_t>& rank, uint32_t world_size, nb::object allgather,
          uint64_t signals, uint64_t save_every, bool alone, nb::object log)
      : allgather_(std::move(allgather)), log_(std::move(log)), world_size_(world_size) {
    ckpt_collective_t collective{};
    collective.struct_size = sizeof collective;
    collective.ctx = this;
    collective.allgather = &Session::Allgather;
    ckpt_session_options_t options{};
    options.struct_size = sizeof options;
    options.job = job ? job->c_str() : nullptr;
    options.store = store ? store->c_str() : nullptr;
    options.rank = rank ? *rank : CKPT_UNSET_RANK;
    options.world_size = world_size;
    options.collective = allgather_.is_none() ? nullptr : &collective;
    options.signals = signals;
    options.save_every = save_every;
    options.alone = alone ? 1 : 0;
    options.log = log_.is_none() ? nullptr : &Session::Log;
    options.log_ctx = this;
    pending_.Raise(WithoutGil([&] { return ckpt_session_open(&options, &session_); }));
  }

  // Without close: what is in flight is abandoned, loudly.
  ~Session() {
    if (session_ == nullptr) return;
    ckpt_session_t* session = std::exchange(session_, nullptr);
    ckpt_error_free(WithoutGil([&] { return ckpt_session_close(session, 0); }));
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void Track(nb::object state, nb::object before_stage) {
    ckpt_session_t* session = Live();
    before_stage_ = std::move(before_stage);
    ckpt_state_t* raw = nb::cast<State*>(state)->get();
    auto* callback = before_stage_.is_none() ? nullptr : &Session::BeforeStage;
    pending_.Raise(WithoutGil([&] { return ckpt_session_track(session, raw, callback, this); }));
    state_ = std::move(state);
  }

  // (kind, boundary, deadline on CLOCK_BOOTTIME in ns, error or None): a step may make its save and
  // report that an earlier one failed.
  nb::tuple Step(int64_t user_step) {
    ckpt_session_t* session = Live();
    ckpt_request_t request{};
    ckpt_error_t* error =
        WithoutGil([&] { return ckpt_session_step(session, user_step, &request); });
    if (!pending_.empty()) pending_.Raise(error);
    nb::object problem = error == nullptr ? nb::none() : ToPython(error);
    return nb::make_tuple(static_cast<int>(request.kind), request.boundary,
                          request.deadline_boottime_ns, problem);
  }

  void Phase(int phase, double expected_seconds) {
    ckpt_session_t* session = Live();
    const auto ns = static_cast<int64_t>(expected_seconds * kNsPerSecond);
    Check(WithoutGil(
        [&] { return ckpt_session_phase(session, static_cast<ckpt_phase_t>(phase), ns); }));
  }
  void Finish() {
    ckpt_session_t* session = Live();
    pending_.Raise(WithoutGil([&] { return ckpt_session_finish(session); }));
  }
  void Close(const std::optional<double>& timeout) {
    if (session_ == nullptr) return;
    ckpt_session_t* session = std::exchange(session_, nullptr);
    const int64_t ns = ToNs(timeout);
    ckpt_error_t* error = WithoutGil([&] { return ckpt_session_close(session, ns); });
    Forget();
    pending_.Raise(error);
  }
  // Ends nothing: the process is about to end without the other ranks.
  void Abandon() { session_ = nullptr; }
  bool closed() const { return session_ == nullptr; }

  std::string Describe() {
    ckpt_session_t* session = Live();
    const char* json = nullptr;
    Check(WithoutGil([&] { return ckpt_session_describe(session, &json); }));
    return json;
  }
  std::string List() {
    ckpt_session_t* session = Live();
    const char* json = nullptr;
    Check(WithoutGil([&] { return ckpt_reader_list(session, &json); }));
    return json;
  }

  ckpt_save_t* BeginSave(int64_t step, bool overlap, double slot_timeout, nb::object changed) {
    ckpt_session_t* session = Live();
    auto mine = std::make_unique<Changed>();
    mine->pending = &pending_;
    mine->ask = std::move(changed);
    ckpt_save_options_t options{};
    options.struct_size = sizeof options;
    options.step = step;
    options.overlap = overlap ? 1 : 0;
    options.timeout_ns = ToNs(slot_timeout);
    options.changed = mine->ask.is_none() ? nullptr : &Changed::Ask;
    options.ctx = mine.get();
    ckpt_save_t* save = nullptr;
    ckpt_error_t* error = WithoutGil([&] { return ckpt_save_begin(session, &options, &save); });
    if (error == nullptr && options.changed != nullptr) {
      std::erase_if(changed_, [](const auto& earlier) { return earlier->asked; });
      changed_.push_back(std::move(mine));
    }
    pending_.Raise(error);
    return save;
  }
  void Fence() {
    ckpt_session_t* session = Live();
    pending_.Raise(WithoutGil([&] { return ckpt_save_fence(session); }));
  }
  // Null if there is nothing at all to read.
  ckpt_reader_t* OpenReader(const std::string& selector) {
    ckpt_session_t* session = Live();
    ckpt_reader_t* reader = nullptr;
    pending_.Raise(
        WithoutGil([&] { return ckpt_reader_open(session, selector.c_str(), &reader); }));
    return reader;
  }

  void RegisterCommunicator(const std::string& name, nb::object quiesce, nb::object down,
                            nb::object up, nb::object verify) {
    ckpt_session_t* session = Live();
    auto mine = std::make_unique<Communicator>();
    mine->pending = &pending_;
    mine->quiesce = std::move(quiesce);
    mine->down = std::move(down);
    mine->up = std::move(up);
    mine->verify = std::move(verify);
    ckpt_comm_ops_t ops{};
    ops.struct_size = sizeof ops;
    ops.ctx = mine.get();
    ops.name = name.c_str();
    ops.quiesce = &Communicator::Quiesce;
    ops.down = &Communicator::Down;
    ops.up = &Communicator::Up;
    ops.verify = &Communicator::Verify;
    pending_.Raise(WithoutGil([&] { return ckpt_comm_register(session, &ops, &mine->comm); }));
    communicators_.push_back(std::move(mine));
  }

 private:
  // Callbacks lead back to this object; a closed session makes none.
  void Forget() {
    allgather_ = log_ = state_ = before_stage_ = nb::none();
    communicators_.clear();
    changed_.clear();
  }
  ckpt_session_t* Live() const {
    if (session_ == nullptr) throw nb::value_error("the session is closed");
    return session_;
  }

  static int32_t BeforeStage(void* ctx, ckpt_state_t*) {
    auto* self = static_cast<Session*>(ctx);
    return self->pending_.Guard([&] { self->before_stage_(); });
  }

  static int32_t Allgather(void* ctx, const void* in, size_t n, void* out, int64_t deadline_ns) {
    auto* self = static_cast<Session*>(ctx);
    return self->pending_.Guard([&] {
      nb::bytes all = nb::cast<nb::bytes>(self->allgather_(nb::bytes(in, n), deadline_ns));
      if (all.size() != n * self->world_size_)
        throw nb::value_error("the allgather returned a wrong number of bytes");
      std::memcpy(out, all.data(), all.size());
    });
  }

  // From any thread. What it raises has nowhere to go.
  static void Log(void* ctx, int32_t level, const char* message) {
    auto* self = static_cast<Session*>(ctx);
    nb::gil_scoped_acquire acquire;
    try {
      self->log_(level, nb::str(message));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("libckpt log callback");
    }
  }

  Pending pending_;
  nb::object allgather_, log_, state_, before_stage_;
  std::vector<std::unique_ptr<Changed>> changed_;  // of overlapped saves
  uint32_t world_size_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  ckpt_session_t* session_ = nullptr;
};

// A reader without a session.
std::unique_ptr<Reader> OpenPath(const std::string& path, const std::string& selector,
                                 uint32_t rank) {
  ckpt_reader_t* reader = nullptr;
  Check(WithoutGil(
      [&] { return ckpt_reader_open_path(path.c_str(), selector.c_str(), rank, &reader); }));
  return std::make_unique<Reader>(reader, nb::none());
}

void DefineSession(nb::module_& m) {
  nb::class_<Session>(m, "Session")
      .def(nb::init<const std::optional<std::string>&, const std::optional<std::string>&,
                    const std::optional<uint32_t>&, uint32_t, nb::object, uint64_t, uint64_t, bool,
                    nb::object>(),
           nb::kw_only(), nb::arg("job").none() = nb::none(), nb::arg("store").none() = nb::none(),
           nb::arg("rank").none() = nb::none(), nb::arg("world_size") = 0,
           nb::arg("allgather").none() = nb::none(), nb::arg("signals") = 0,
           nb::arg("save_every") = 0, nb::arg("alone") = false, nb::arg("log").none() = nb::none())
      .def("track", &Session::Track, nb::arg("state"), nb::arg("before_stage").none() = nb::none())
      .def("step", &Session::Step, nb::arg("user_step"))
      .def("phase", &Session::Phase, nb::arg("phase"), nb::arg("expected_seconds") = 0.0)
      .def("finish", &Session::Finish)
      .def("close", &Session::Close, nb::arg("timeout").none() = nb::none())
      .def("abandon", &Session::Abandon)
      .def_prop_ro("closed", &Session::closed)
      .def("describe", &Session::Describe)
      .def("list", &Session::List)
      .def(
          "save",
          [](nb::handle_t<Session> self, int64_t step, bool overlap, double slot_timeout,
             nb::object changed) {
            ckpt_save_t* save = nb::cast<Session*>(self)->BeginSave(step, overlap, slot_timeout,
                                                                    std::move(changed));
            return std::make_unique<Save>(save, nb::borrow(self));
          },
          nb::arg("step"), nb::arg("overlap") = false, nb::arg("slot_timeout") = 0.0,
          nb::arg("changed").none() = nb::none())
      .def("fence", &Session::Fence)
      .def(
          "reader",
          [](nb::handle_t<Session> self, const std::string& selector) {
            ckpt_reader_t* reader = nb::cast<Session*>(self)->OpenReader(selector);
            return std::make_unique<Reader>(reader, nb::borrow(self));
          },
          nb::arg("selector") = "")
      .def("register_communicator", &Session::RegisterCommunicator, nb::arg("name"),
           nb::arg("quiesce"), nb::arg("down"), nb::arg("up"), nb::arg("verify"));
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The C ABI of libckpt; use libckpt.torch.";
  nb::set_leak_warnings(false);  // a run that is open when the interpreter ends is no news
  m.attr("ABI_VERSION") = ckpt_abi_version();
  m.attr("EXIT_SUSPENDED") = CKPT_EXIT_SUSPENDED;

  nb::class_<State>(m, "State")
      .def(nb::init<>())
      .def("add_tensor", &State::AddTensor, nb::arg("name"), nb::arg("dtype"), nb::arg("placement"),
           nb::arg("shape"), nb::arg("local_shape").none(), nb::arg("local_offset").none(),
           nb::arg("strides").none(), nb::arg("data"), nb::arg("tied_to").none() = nb::none())
      .def("move_tensor", &State::MoveTensor, nb::arg("name"), nb::arg("data"))
      .def("add_value", &State::AddValue, nb::arg("name"), nb::arg("per_rank"), nb::arg("json"))
      .def("add_blob", &State::AddBlob, nb::arg("name"), nb::arg("per_rank"), nb::arg("media_type"),
           nb::arg("data"));

  nb::class_<Save>(m, "Save")
      .def("wait", &Save::Wait, nb::arg("level"), nb::arg("timeout").none() = nb::none())
      .def("progress", &Save::Progress)
      .def("cancel", &Save::Cancel);

  nb::class_<Reader>(m, "Reader")
      .def("step", &Reader::Step)
      .def("load", &Reader::Load, nb::arg("state"))
      .def("load_part", &Reader::LoadPart, nb::arg("state"))
      .def("contents", &Reader::Contents)
      .def("value", &Reader::Value, nb::arg("name"))
      .def("blob", &Reader::Blob, nb::arg("name"))
      .def("close", &Reader::Close);

  m.def("open_path", &OpenPath, nb::arg("path"), nb::arg("selector") = "", nb::arg("rank") = 0);

  nb::class_<KeyValue>(m, "KeyValue")
      .def("set", &KeyValue::Set, nb::arg("key"), nb::arg("value"))
      .def("wait", &KeyValue::Wait, nb::arg("key"), nb::arg("timeout").none() = nb::none());

  DefineSession(m);
  DefineCopies(m);
}
