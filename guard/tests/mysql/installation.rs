//! `sql/mysql.sql`, for drivers.

/// Its parts, as the program `mysql` sends them, but for the first.
pub(crate) fn installation() -> Vec<&'static str> {
    let (tables, routines) = include_str!("../../sql/mysql.sql").split_once("DELIMITER //\n").unwrap();
    let (routines, _) = routines.rsplit_once("//\n").unwrap();
    std::iter::once(tables).chain(routines.split("//\n")).collect()
}
