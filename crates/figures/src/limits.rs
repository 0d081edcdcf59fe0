//! Products compared with the limits of the machine, for the chapter that explains them.

use std::collections::BTreeMap;
use std::fmt::Write;

use tacit_drawing::{Dot, Dots, number};

use crate::Line;

/// The drawing and the table by their names in the page's folder; nothing where no product was recorded.
pub(crate) fn files(ours: &[Line]) -> Vec<(String, String)> {
    let mut products: Vec<Product> = ours.iter().filter_map(Product::from_line).collect();
    if products.is_empty() {
        return Vec::new();
    }
    products.sort_by_key(|product| product.rows);
    let mut groups: BTreeMap<u32, Vec<Dot>> = BTreeMap::new();
    let mut table = "| Rows | Weights | Weights in a nanosecond | Operations in a nanosecond | At most, by |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for product in &products {
        let Product { format, rows, weights, operations, limit, .. } = product;
        let by = product.limited_by(&products);
        let _ = writeln!(
            table,
            "| {rows} | {format} | {} | {} | {}, {by} |",
            number(*weights),
            number(*operations),
            number(*limit)
        );
        groups.entry(*rows).or_default().push(Dot {
            label: (*format).to_owned(),
            text: format!("{} of {}, {by}", number(*operations), number(*limit)),
            value: *operations,
            spread: Some([*operations, limit.max(*operations)]),
            ours: true,
        });
    }
    let heading = |rows: u32| format!("{rows} {}", if rows == 1 { "row" } else { "rows" });
    let chart = Dots {
        title: "Products beside the limits of the machine".into(),
        axis: "operations in a nanosecond; the thick part ends at the limit".into(),
        groups: groups.into_iter().map(|(rows, products)| (heading(rows), products)).collect(),
    };
    vec![("figures/limits.svg".to_owned(), chart.to_svg()), ("figures/limits.txt".to_owned(), table)]
}

/// A product of rows of floats with weights as they lie in a cache.
struct Product<'a> {
    format: &'a str,
    rows: u32,
    /// How many weights, and how many multiplications and additions, in a nanosecond.
    weights: f64,
    operations: f64,
    /// The operations that the machine can do at most, and those that it can do in registers.
    limit: f64,
    fma: f64,
}

impl<'a> Product<'a> {
    /// The product of a case such as `nf4/4096x4096/m32`.
    fn from_line(line: &'a Line) -> Option<Self> {
        if line.bench != "matmul" || line.baseline != "the limit of reading or multiplying" || line.unit != "ms" {
            return None;
        }
        let mut parts = line.case.split('/');
        let (format, shape, rows, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
            return None;
        };
        let (n, k) = shape.split_once('x')?;
        let weights = n.parse::<f64>().ok()? * k.parse::<f64>().ok()?;
        let rows: u32 = rows.strip_prefix('m')?.parse().ok()?;
        let operations = 2.0 * f64::from(rows) * weights;
        let (taken, at_most) = (line.value * 1e6, line.baseline_value? * 1e6);
        let fma = line.run.as_ref()?.limits?.fma;
        let (weights, limit) = (weights / taken, operations / at_most);
        Some(Self { format, rows, weights, operations: operations / taken, limit, fma })
    }

    /// What keeps a product from more operations. One row is limited by reading, and reading takes as long for more.
    fn limited_by(&self, products: &[Self]) -> &'static str {
        let alone = products.iter().find(|product| product.format == self.format && product.rows == 1);
        match alone {
            Some(alone) if f64::from(self.rows) * alone.limit < self.fma => "reading",
            Some(_) => "multiplying",
            None => "the slower of both",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Machine, Run};

    fn line(case: &str, value: f64, limit: f64) -> Line {
        let machine = Machine { cpu: String::new(), isa: String::new(), caches: Vec::new(), threads: 2, load: None };
        let limits = Limits { read_hot: 50.0, read_cold: None, fma: 100.0, dot: 400.0 };
        Line {
            bench: "matmul".into(),
            case: case.into(),
            unit: "ms".into(),
            value,
            baseline: "the limit of reading or multiplying".into(),
            baseline_value: Some(limit),
            ratio: value / limit,
            run: Some(Run { machine, commit: String::new(), date: String::new(), limits: Some(limits) }),
            ..Line::default()
        }
    }

    #[test]
    fn what_limits_a_product_is_told_by_the_limit_itself() {
        // A million weights: 2 million operations a row, which take 20 us at 100 in a nanosecond.
        let lines = [
            line("nf4/1000x1000/m32", 1.28, 0.64),
            line("nf4/1000x1000/m1", 0.1, 0.04),
            line("nf4/1000x1000/m1/cold", 0.2, 0.1),
        ];
        let files = files(&lines);
        let table = &files[1].1;
        assert!(table.contains("| 1 | nf4 | 10 | 20 | 50, reading |"), "{table}");
        assert!(table.ends_with("| 32 | nf4 | 0.781 | 50 | 100, multiplying |\n"), "{table}");
        assert!(files[0].1.contains("50 of 100, multiplying") && !table.contains("cold"));
        assert!(super::files(&[]).is_empty());
    }
}
