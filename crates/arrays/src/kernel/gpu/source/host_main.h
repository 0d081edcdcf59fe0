// Runs launches that come on the standard input, and writes their results to the standard output.

#include <sys/mman.h>
#include <unistd.h>

namespace host {

using tacit::u32;
using tacit::u64;

enum State { RUNS, AT_BARRIER, AT_SHUFFLE, ENDED };

struct Fibre {
  State state = RUNS;
  tacit::Place place;
  ucontext_t context;
  jmp_buf resume;
  bool started = false;
};

const std::size_t STACK = 256 * 1024;
std::vector<Fibre> fibres;
char* stacks = nullptr;
Fibre* running = nullptr;
ucontext_t scheduler_context;
jmp_buf scheduler;
std::function<void()> kernel;
std::map<std::string, std::vector<char>> arrays;
float exchanged[32 * 32];
u64 random_state = 0;

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(1);
}

u32 random_below(u32 bound) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (u32)((random_state >> 33) % bound);
}

tacit::Place place() { return running->place; }

void leave(State state) {
  running->state = state;
  if (_setjmp(running->resume) == 0) _longjmp(scheduler, 1);
}
void wait_for_group() { leave(AT_BARRIER); }
void wait_for_warp() { leave(AT_SHUFFLE); }

float shuffle_xor(float value, u32 mask) {
  u32 first = running->place.warp * 32, lane = running->place.lane;
  exchanged[first + lane] = value;
  wait_for_warp();
  float other = exchanged[first + (lane ^ mask)];
  wait_for_warp();
  return other;
}

u32 shown_words[32][32][16];
u32 (*shown())[16] { return shown_words[running->place.warp]; }

// Memory of the group, which holds NaN at first.
void* group_array(const char* name, std::size_t bytes) {
  std::vector<char>& array = arrays[name];
  if (array.empty()) array.assign(bytes + 16, (char)0xff);
  return (void*)(((std::uintptr_t)array.data() + 15) & ~(std::uintptr_t)15);
}

void enter() {
  kernel();
  running->state = ENDED;
  _longjmp(scheduler, 1);
}

void resume(Fibre& fibre, std::size_t index) {
  running = &fibre;
  if (_setjmp(scheduler) != 0) return;
  if (fibre.started) _longjmp(fibre.resume, 1);
  fibre.started = true;
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = stacks + index * STACK;
  fibre.context.uc_stack.ss_size = STACK;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, enter, 0);
  setcontext(&fibre.context);
}

// Lets those that wait for each other go on once all of them have come.
bool release(std::size_t first, std::size_t end, State state) {
  std::size_t waiting = 0;
  for (std::size_t i = first; i < end; ++i) waiting += fibres[i].state == state;
  if (waiting == 0) return false;
  if (waiting < end - first) return false;
  for (std::size_t i = first; i < end; ++i) fibres[i].state = RUNS;
  return true;
}

void run_group(u32 order) {
  arrays.clear();
  std::vector<std::size_t> turn(fibres.size());
  for (std::size_t i = 0; i < turn.size(); ++i) turn[i] = order == 1 ? turn.size() - 1 - i : i;
  for (;;) {
    if (order > 1)
      for (std::size_t i = turn.size(); i > 1; --i) std::swap(turn[i - 1], turn[random_below((u32)i)]);
    bool ran = false, all_ended = true;
    for (std::size_t i : turn)
      if (fibres[i].state == RUNS) {
        resume(fibres[i], i);
        ran = true;
      }
    bool released = false;
    for (std::size_t first = 0; first < fibres.size(); first += 32) {
      std::size_t end = first + 32 < fibres.size() ? first + 32 : fibres.size();
      released = release(first, end, AT_SHUFFLE) || released;
    }
    released = release(0, fibres.size(), AT_BARRIER) || released;
    for (Fibre& fibre : fibres) all_ended = all_ended && fibre.state == ENDED;
    if (all_ended) return;
    if (!ran && !released) fail("some threads wait at a barrier that others do not reach");
  }
}

void run(const u32 (&grid)[3], const u32 (&group)[3], u32 order, std::function<void()> body) {
  kernel = std::move(body);
  random_state = order;
  u32 threads = group[0] * group[1] * group[2];
  if (threads > 1024) fail("a group of more than 1024 threads");
  for (int i = 0; i < 3; ++i)
    if (grid[i] % group[i] != 0 || grid[i] == 0) fail("the grid is no multiple of the group");
  if (grid[1] / group[1] > 65535 || grid[2] / group[2] > 65535) fail("more groups than CUDA has along an axis but the first");
  if (stacks == nullptr) stacks = (char*)mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (u32 z = 0; z < grid[2] / group[2]; ++z)
    for (u32 y = 0; y < grid[1] / group[1]; ++y)
      for (u32 x = 0; x < grid[0] / group[0]; ++x) {
        fibres.assign(threads, Fibre());
        for (u32 i = 0; i < threads; ++i) fibres[i].place = tacit::Place{x, y, z, i, i % 32, i / 32};
        run_group(order);
      }
}

// Whether subnormal numbers are taken for zero, as Metal may take them; other CPUs than these know of no such thing.
void flush_subnormals(bool flushes) {
#if defined(__x86_64__)
  const u32 modes = 0x8040;
  __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~modes) | (flushes ? modes : 0));
#elif defined(__aarch64__)
  u64 control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" ::"r"((control & ~((u64)1 << 24)) | (u64)flushes << 24));
#else
  (void)flushes;
#endif
}

// Memory with an end beyond which no byte can be read. It begins so many bytes behind a multiple of 16, or ends where the memory does.
struct Memory {
  char* pages;
  std::size_t size;
  char* data;
  Memory(std::size_t bytes, std::size_t offset, bool at_end) {
    std::size_t page = (std::size_t)sysconf(_SC_PAGESIZE);
    size = (bytes + offset + page - 1) / page * page + page;
    pages = (char*)mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == (char*)MAP_FAILED) fail("no memory");
    mprotect(pages + size, page, PROT_NONE);
    std::memset(pages, 0xff, size);
    std::size_t room = at_end && offset == 0 ? bytes : (bytes + offset + 15) / 16 * 16;
    data = pages + size - room + offset;
    size += page;
  }
  Memory(const Memory&) = delete;
  ~Memory() { munmap(pages, size); }
};

template <class T> T read_value() {
  T value;
  if (std::fread(&value, sizeof value, 1, stdin) != 1) fail("the input ends early");
  return value;
}

typedef void (*Instance)(char** inputs, char** outputs, const int* sizes_shape);

int serve(const Instance* instances, u32 count) {
  u32 instance;
  while (std::fread(&instance, 4, 1, stdin) == 1) {
    if (instance >= count) fail("no such instance");
    u32 order = read_value<u32>(), at_end = read_value<u32>(), flushes = read_value<u32>();
    int sizes[8];
    for (int& size : sizes) size = read_value<int>();
    u32 grid[3], group[3];
    for (u32& extent : grid) extent = read_value<u32>();
    for (u32& extent : group) extent = read_value<u32>();
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<char*> inputs, outputs;
    std::vector<std::size_t> lengths;
    for (u32 i = read_value<u32>(); i > 0; --i) {
      u64 bytes = read_value<u64>(), offset = read_value<u64>();
      memory.emplace_back(new Memory(bytes, offset, at_end != 0));
      inputs.push_back(memory.back()->data);
      if (bytes > 0 && std::fread(inputs.back(), bytes, 1, stdin) != 1) fail("the input ends early");
    }
    for (u32 i = read_value<u32>(); i > 0; --i) {
      lengths.push_back(read_value<u64>());
      u64 offset = read_value<u64>();
      memory.emplace_back(new Memory(lengths.back(), offset, at_end != 0));
      outputs.push_back(memory.back()->data);
    }
    flush_subnormals(flushes != 0);
    run(grid, group, order, [&] { instances[instance](inputs.data(), outputs.data(), sizes); });
    flush_subnormals(false);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (lengths[i] > 0 && std::fwrite(outputs[i], lengths[i], 1, stdout) != 1) fail("nobody reads");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace host
