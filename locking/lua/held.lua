-- held.lua tells which of many locks are held.
--
-- KEYS  the locks (hashes); a key that holds something else counts as not held
--
-- Returns one number for each key: 1 held, 0 not.
-- Changes nothing.

local replies = {}
for i, lock in ipairs(KEYS) do
  replies[i] = 0
  if redis.call('TYPE', lock)['ok'] == 'hash' then
    local h = redis.call('HMGET', lock, 'owner', 'expires')
    if h[1] and h[1] ~= '' and (tonumber(h[2] or '') or 0) > now then replies[i] = 1 end
  end
end
return replies
