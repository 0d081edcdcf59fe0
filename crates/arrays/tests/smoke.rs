use mlx_rs::{Array, module::Module, nn, ops, transforms};
use tacit_arrays::{AffineArray, Nf4Array, ste};
use tacit_core::*;

#[test]
fn smoke() {
    let d = mlx_rs::random::normal::<f32>(&[512, 256], None, None, None).unwrap();
    let x = mlx_rs::random::normal::<f32>(&[2, 3, 256], None, None, None).unwrap();
    for q in [Value::from(Nf4Array::quantize(&d, 64).unwrap()), AffineArray::quantize(&d, 64, 4).unwrap().into()] {
        let dense = q.dense().unwrap();
        let _deny = Policy::Deny.scope();
        let mut l = nn::Linear::new(256, 512).unwrap();
        let params = Parameters::from([("weight".to_owned(), q.clone())]);
        let y = with_parameters(&mut l, &params, |l| l.forward(&x)).unwrap().dense().unwrap();
        l.weight.value = dense;
        let r = l.forward(&x).unwrap();
        let diff = ops::max(ops::abs(&(&y - &r)).unwrap(), None).unwrap().item::<f32>();
        println!("diff {diff} of {}", ops::max(ops::abs(&r).unwrap(), None).unwrap().item::<f32>());
        println!("{}", explain_with_parameters(&mut l, &params, |l| l.forward(&x)).unwrap());
    }
    let loss = |w: &Array, x: &Array| -> Result<Array> {
        let _deny = Policy::Deny.scope();
        let w = ste(|w: &Array| Nf4Array::quantize(w, 64))(w)?;
        implicit(|[x, w]: [Array; 2]| x.matmul(w.t())?.square()?.sum(None))([x.into(), w])?.dense()
    };
    let xx = x.clone();
    let mut g = transforms::grad(move |w: &Array| Ok(loss(w, &xx)?));
    let g = g(&d).unwrap();
    println!("{:?}", g.shape());
    let dd = d.clone();
    let mut gx = transforms::grad(move |x: &Array| Ok(loss(&dd, x)?));
    println!("{:?} {}", gx(&x).unwrap().shape(), gx(&x).unwrap().sum(None).unwrap().item::<f32>());
}
