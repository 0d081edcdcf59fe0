// MLX's main thread: the one that first used its scheduler, or, from 0.32.3 on, that first had a stream.
//
// The error of a task that failed on a stream is thrown into the next call by which the main thread queues a task there. A
// task that was counted before that call and not queued by it stays counted for ever, and once some are, evals wait for
// them for ever, in all threads. On any other thread the error stays with the stream until the eval that waits for it.
#pragma once

namespace tacit {

// Makes a thread of ours the main one, unless MLX was used before. To be called before the first stream, and where programs
// call past our `new_stream`, before the first eval.
void take_main_thread();

}  // namespace tacit
