//! What is refused, and by which words.
