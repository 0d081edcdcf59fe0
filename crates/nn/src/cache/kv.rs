//! Keys and values of one layer.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::ops::dynamic_slice_update;
use tacit_core::{Error, Result, Tree, Value};

use super::Window;

/// The keys and values of one attention layer, in buffers that a step writes into.
///
/// It is a state of [`compile_with_state`](tacit_core::compile_with_state) and of
/// [`Model::run_with`](crate::Model::run_with). Where the next token goes is an array, so that no step is traced anew; only
/// [`reserve`](Self::reserve), which is called outside a step, makes the buffers larger.
#[derive(Tree, Clone, Debug)]
pub struct KvCache {
    /// `[batch, heads, capacity, width]`.
    keys: Value,
    /// `[batch, heads, capacity, width]`.
    values: Value,
    /// The position of the token in each slot, -1 where there is none: `i32[batch, capacity]`.
    positions: Array,
    /// The position of the next token: `i32[batch]`.
    offset: Array,
    /// The slot that is written next: `i32[1]`.
    cursor: Array,
    #[tree(static)]
    window: Window,
}

impl KvCache {
    /// An empty cache of dense keys and values, `[batch, heads, _, width]`.
    ///
    /// # Errors
    ///
    /// MLX refuses the shape.
    pub fn new([batch, heads, width]: [i32; 3], dtype: Dtype) -> Result<Self> {
        let empty = ops::zeros_dtype(&[batch, heads, 0, width], dtype)?;
        Ok(Self {
            keys: empty.clone().into(),
            values: empty.into(),
            positions: ops::zeros::<i32>(&[batch, 0])?,
            offset: ops::zeros::<i32>(&[batch])?,
            cursor: ops::zeros::<i32>(&[1])?,
            window: Window::Everything,
        })
    }

    /// Makes room for so many tokens more; it is called outside a step, before it.
    ///
    /// # Errors
    ///
    /// MLX refuses the shape.
    pub fn reserve(&mut self, tokens: i32) -> Result<()> {
        let free = self.capacity() - self.cursor.item_exact::<i32>();
        if free >= tokens {
            return Ok(());
        }
        let more = (tokens - free + 255) / 256 * 256;
        let grown = |value: &Value| -> Result<Value> {
            let buffer = value.dense()?;
            let mut shape = buffer.shape().to_vec();
            shape[2] = more;
            Ok(ops::concatenate(&[&buffer, &ops::zeros_dtype(&shape, buffer.dtype())?], 2)?.into())
        };
        let (keys, values) = (grown(&self.keys)?, grown(&self.values)?);
        let empty = ops::full::<i32>(&[self.positions.dim(0), more], Array::from_int(-1))?;
        self.positions = ops::concatenate(&[&self.positions, &empty], 1)?;
        (self.keys, self.values) = (keys, values);
        Ok(())
    }

    /// The slots that there are.
    #[must_use]
    pub fn capacity(&self) -> i32 {
        self.positions.dim(1)
    }

    /// The position of the next token of each sequence, `i32[batch]`, as `rope_dynamic` takes it.
    #[must_use]
    pub fn offset(&self) -> &Array {
        &self.offset
    }

    /// What the next `tokens` see, once they are written: `bool[batch, 1, tokens, capacity]`.
    ///
    /// # Errors
    ///
    /// MLX refuses the shape.
    pub fn mask(&self, tokens: i32) -> Result<Array> {
        let next = self.next(tokens)?;
        let written = dynamic_slice_update(&self.positions, &next, &self.cursor, &[1])?.expand_dims_axes(&[1, 2])?;
        let asked = next.expand_dims_axes(&[1, 3])?;
        let there = written.ge(Array::from_int(0))?;
        Ok(there.logical_and(written.le(&asked)?)?)
    }

    /// Writes the keys and values of the next tokens, `[batch, heads, tokens, width]`: the whole buffers,
    /// `[batch, heads, capacity, width]`, of which [`mask`](Self::mask) says what is seen.
    ///
    /// # Errors
    ///
    /// The tokens are more than the capacity.
    pub fn update(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let tokens = keys.dim(2);
        if tokens > self.capacity() {
            return Err(Error::invalid(
                format!("{tokens} tokens are written into a cache of {}", self.capacity()),
                "reserve room for them before the step",
            ));
        }
        let keys = dynamic_slice_update(&self.keys.dense()?, keys, &self.cursor, &[2])?;
        let values = dynamic_slice_update(&self.values.dense()?, values, &self.cursor, &[2])?;
        self.positions = dynamic_slice_update(&self.positions, &self.next(tokens)?, &self.cursor, &[1])?;
        self.offset = self.offset.add(Array::from_int(tokens))?;
        self.cursor = self.cursor.add(Array::from_int(tokens))?;
        (self.keys, self.values) = (keys.clone().into(), values.clone().into());
        Ok((keys, values))
    }

    /// The positions of the next tokens, `i32[batch, tokens]`.
    fn next(&self, tokens: i32) -> Result<Array> {
        Ok(self.offset.expand_dims(1)?.add(ops::arange::<_, i32>(0, tokens, None)?)?)
    }
}
