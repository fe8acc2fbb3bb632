-- Horizon: tell how far the groups of a stream have settled it.
--
-- KEYS    1 stream
-- Returns {latest, unsettled}
--         latest: id of the newest entry, "0-0" without one
--         unsettled: id of the oldest entry that some group has yet to settle, read or not; "" when there
--         is none. Without any group, nothing is.
-- Refuses with WRONGTYPE when the key is no stream. Changes nothing.
local stream = KEYS[1]

local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
if not first then return {'0-0', ''} end
local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]

local unsettled = ''
local function note(id)
  if unsettled == '' or precedes(id, unsettled) then unsettled = id end
end
for _, g in ipairs(groups_of(stream)) do
  -- Of what was trimmed while pending there is only an id left, which holds nothing back.
  local pending = redis.call('XPENDING', stream, g['name'], first[1], '+', 1)[1]
  if pending then note(pending[1]) end
  local unread = redis.call('XRANGE', stream, '(' .. g['last-delivered-id'], '+', 'COUNT', 1)[1]
  if unread then note(unread[1]) end
end
return {last[1], unsettled}
