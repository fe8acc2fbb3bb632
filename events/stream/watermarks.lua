-- Watermarks: read the newest and the oldest unsettled entry of a stream. groups.lua precedes this script.
--
-- KEYS    1 stream
-- Returns {latest, unsettled}
--         latest: ID of the newest entry, "0-0" if there is none
--         unsettled: ID of the oldest entry that some group has not settled, read or not; "" if there is
--         none, or no group
-- Refuses with WRONGTYPE if the key is not a stream. Changes nothing.
local stream = KEYS[1]

local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
if not first then return {'0-0', ''} end
local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]

local unsettled = ''
local function note(id)
  if unsettled == '' or precedes(id, unsettled) then unsettled = id end
end
for _, g in ipairs(groups_of(stream)) do
  -- Ignore pending IDs below the first entry: those entries were trimmed.
  local pending = redis.call('XPENDING', stream, g['name'], first[1], '+', 1)[1]
  if pending then note(pending[1]) end
  local unread = redis.call('XRANGE', stream, '(' .. g['last-delivered-id'], '+', 'COUNT', 1)[1]
  if unread then note(unread[1]) end
end
return {last[1], unsettled}
