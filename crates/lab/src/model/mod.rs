mod cores;
mod costs;
mod design;
mod sim;
#[cfg(test)]
mod tests;
mod variants;
