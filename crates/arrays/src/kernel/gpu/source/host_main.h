// Runs launches that come on the standard input, and writes their results to the standard output.

#include <sys/mman.h>
#include <unistd.h>

// Where ThreadSanitizer watches, each fibre is a thread of its, and only barriers order what they read and write.
#ifdef TACIT_WATCHED
#include <sanitizer/tsan_interface.h>
#define TACIT_BECOME(thread) __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync)
#define TACIT_BEFORE(event) __tsan_release(event)
#define TACIT_AFTER(event) __tsan_acquire(event)
#else
#define TACIT_BEFORE(event) (void)(event)
#define TACIT_AFTER(event) (void)(event)
#endif

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
  // Barriers of the group and of the warp that it has come to.
  u32 group_barriers = 0, warp_barriers = 0;
};

const std::size_t STACK = 256 * 1024;
std::vector<Fibre> fibres;
char* stacks = nullptr;
Fibre* running = nullptr;
ucontext_t scheduler_context;
jmp_buf scheduler;
std::function<void()> kernel;
float exchanged[32 * 32];
u64 random_state = 0;

// What orders threads: that a group begins and has ended, and its barriers, of which those that can be under way at once differ.
char begun, ended, group_met[2], warp_met[32][2];

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(1);
}

u32 random_below(u32 bound) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (u32)((random_state >> 33) % bound);
}

TACIT_UNWATCHED tacit::Place place() { return running->place; }

void enter();

// Gives a fibre its stack.
void begin(Fibre& fibre, std::size_t index) {
  fibre.started = true;
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = stacks + index * STACK;
  fibre.context.uc_stack.ss_size = STACK;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, enter, 0);
}

#ifdef TACIT_WATCHED

void* scheduler_thread = nullptr;
void* watched_threads[1024];

void watch(u32 threads) {
  if (scheduler_thread == nullptr) scheduler_thread = __tsan_get_current_fiber();
  for (u32 i = 0; i < threads; ++i)
    if (watched_threads[i] == nullptr) watched_threads[i] = __tsan_create_fiber(0);
}

// ThreadSanitizer is told of these switches. Jumps it follows by itself, and knows no places of other threads.
TACIT_UNWATCHED void leave(State state) {
  Fibre* fibre = running;
  fibre->state = state;
  TACIT_BECOME(scheduler_thread);
  swapcontext(&fibre->context, &scheduler_context);
}

TACIT_UNWATCHED void resume(Fibre& fibre, std::size_t index) {
  running = &fibre;
  if (!fibre.started) begin(fibre, index);
  TACIT_BECOME(watched_threads[index]);
  swapcontext(&scheduler_context, &fibre.context);
}

#else

void watch(u32) {}

// Jumps ask nothing of the system.
void leave(State state) {
  running->state = state;
  if (_setjmp(running->resume) == 0) _longjmp(scheduler, 1);
}

void resume(Fibre& fibre, std::size_t index) {
  running = &fibre;
  if (_setjmp(scheduler) != 0) return;
  if (fibre.started) _longjmp(fibre.resume, 1);
  begin(fibre, index);
  setcontext(&fibre.context);
}

#endif

TACIT_UNWATCHED void enter() {
  TACIT_AFTER(&begun);
  kernel();
  TACIT_BEFORE(&ended);
  leave(ENDED);
}

TACIT_UNWATCHED void wait_for_group() {
  char* met = &group_met[running->group_barriers++ % 2];
  TACIT_BEFORE(met);
  leave(AT_BARRIER);
  TACIT_AFTER(met);
}
TACIT_UNWATCHED void wait_for_warp() {
  char* met = &warp_met[running->place.warp][running->warp_barriers++ % 2];
  TACIT_BEFORE(met);
  leave(AT_SHUFFLE);
  TACIT_AFTER(met);
}
void meet_warp() { leave(AT_SHUFFLE); }

TACIT_UNWATCHED float shuffle_xor(float value, u32 mask) {
  u32 first = running->place.warp * 32, lane = running->place.lane;
  exchanged[first + lane] = value;
  meet_warp();
  float other = exchanged[first + (lane ^ mask)];
  meet_warp();
  return other;
}

u32 shown_words[32][32][16];
TACIT_UNWATCHED u32 (*shown())[16] { return shown_words[running->place.warp]; }

// Memory of the group, which holds NaN at first. A pool, so that ThreadSanitizer sees nothing of how it is given out.
struct GroupArray {
  const char* name;
  char* data;
};
GroupArray arrays[64];
u32 array_count = 0;
alignas(16) char pool[1 << 20];
std::size_t pool_used = 0;

TACIT_UNWATCHED void* group_array(const char* name, std::size_t bytes) {
  for (u32 i = 0; i < array_count; ++i)
    if (std::strcmp(arrays[i].name, name) == 0) return arrays[i].data;
  std::size_t room = (bytes + 31) / 16 * 16;
  if (array_count == 64 || room > sizeof pool - pool_used) fail("a group has no room for its arrays");
  char* data = pool + pool_used;
  // Volatile: no compiler makes a call of it, which ThreadSanitizer would take for this thread's.
  for (volatile char* at = data; at != data + room; ++at) *at = (char)0xff;
  arrays[array_count++] = GroupArray{name, data};
  pool_used += room;
  return data;
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
  array_count = 0;
  pool_used = 0;
  TACIT_BEFORE(&begun);
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
    if (all_ended) {
      TACIT_AFTER(&ended);
      return;
    }
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
  watch(threads);
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
