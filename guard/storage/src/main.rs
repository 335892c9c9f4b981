//! ```sh
//! cargo run -p ringfence-storage -- http://localhost:7401 127.0.0.1:7480 /tmp/files
//! ```

use ringfence_client::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cluster, address, folder] = arguments.as_slice() else {
        return Err("usage: ringfence-storage URL-OF-A-NODE ADDRESS FOLDER".into());
    };
    std::fs::create_dir_all(folder)?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    let storage = ringfence_storage::storage(Client::connect([cluster])?, folder.into());
    Ok(axum::serve(listener, storage).await?)
}
