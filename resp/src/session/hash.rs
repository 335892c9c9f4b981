//! The hash of a key, as the mirror writes it to Redis, for programs that check tokens. Here it is never older than the cluster's state.

use bytes::Bytes;
use ringfence_service::Consistency;
use ringfence_wire::KeyView;

use super::{Done, Session};
use crate::command::CommandName;
use crate::refused::Refused;
use crate::reply::Reply;
use crate::requester::Visit;

impl Session {
    /// `HGET ringfence:{name} field`, or `HMGET … field …`, with the name that SET gives the key.
    pub(super) async fn hash(
        &self,
        command: CommandName,
        arguments: &[Bytes],
        visit: &Visit,
    ) -> Result<Done, Refused> {
        let (caller, name, fields) = (visit.caller(), &arguments[0], &arguments[1..]);
        let key = name.strip_prefix(b"ringfence:{").and_then(|rest| rest.strip_suffix(b"}"));
        let key = key.ok_or_else(|| Refused::unsupported("the only hashes are `ringfence:{key}`"))?;
        let key = self.client.naming().key(key)?;
        let fields: Vec<Field> = fields.iter().map(|field| Field::read(field)).collect::<Result<_, _>>()?;
        let view =
            self.client.door.service.key(caller, caller.allow_key(&key)?, Consistency::Linearizable).await?;
        visit.shows(size(&view));
        let mut values = fields.into_iter().map(|field| field.of(&view)).collect::<Result<Vec<_>, _>>()?;
        Ok(Done::Reply(match command {
            CommandName::Hget => values.pop().unwrap_or(Reply::Null),
            _ => Reply::Array(values),
        }))
    }
}

#[derive(Clone, Copy)]
enum Field {
    Revision,
    Fence,
    Token,
    State,
}

impl Field {
    fn read(name: &[u8]) -> Result<Self, Refused> {
        match name {
            b"rev" => Ok(Self::Revision),
            b"fence" => Ok(Self::Fence),
            b"token" => Ok(Self::Token),
            b"state" => Ok(Self::State),
            _ => Err(Refused::unsupported("the fields are token, fence, rev and state")),
        }
    }

    fn of(self, view: &KeyView) -> Result<Reply, Refused> {
        Ok(match self {
            Self::Revision => Reply::bulk(view.revision.to_string()),
            Self::Fence => Reply::bulk(view.fence.to_string()),
            Self::Token if view.more_holders > 0 => {
                return Err(Refused::unsupported("the key has too many holders to find its newest token"));
            }
            Self::Token => {
                let newest = view.holders.iter().map(|holder| holder.token.0).max();
                Reply::bulk(newest.unwrap_or(0).to_string())
            }
            Self::State => Reply::bulk(if view.holders.is_empty() { "free" } else { "held" }),
        })
    }
}

/// About how many bytes the view has.
fn size(view: &KeyView) -> usize {
    let metadata = |(name, value): (&String, &String)| name.len() + value.len();
    let holders =
        view.holders.iter().map(|holder| 64 + holder.metadata.entries().iter().map(metadata).sum::<usize>());
    holders.sum::<usize>() + 64 * view.waiters.len()
}
