-- write.lua replaces what is kept of one or more repositories' watches, and asks for changes, in one step:
-- only if every one of these sets is still the one that the caller has read.
--
-- KEYS    1 changes (stream)   2 index (ZSET of repository keys, all scores 0)   3 poll (ZSET: repository key -> ms)
--         then, for each set: the set (hash), the place of its remote before, and that afterwards (hashes); where it
--         was none, or will be none, one stands for the other
-- ARGV    1 a version that nothing has had   2 how many sets; then for each: repository key, the version read ('' for
--         none), '1' when the set stays and '0' when it goes, '1' when it is polled, number of fields to remove,
--         these, number of names and values to set, these in turn
--         then how many changes; then for each: number of names and values of its entry, these in turn
-- Returns {verdict, …}
--         'written'              all is done
--         'raced', key           that repository's set is another by now: nothing changed
--         'related', key, other  nobody watched the first until now, and the other, which is watched, lies above or
--                                below it: nothing changed
-- Refuses with WRONGTYPE when a key holds something else, and with OOM; then nothing changed.
--
-- A set whose changes are asked for is noted as asked, and a polled one is put down for now: due.lua knows the
-- interval, and puts it off. Sets and places that are written have the new version. Adding comes first, for it needs memory and most of the rest may not.

local changes, index, poll = KEYS[1], KEYS[2], KEYS[3]
local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end
local function list()
  local values = {}
  for i = 1, tonumber(take()) do values[i] = take() end
  return values
end

local sets, messages = {}, {}
local version = take()
for i = 1, tonumber(take()) do
  sets[i] = {hash = KEYS[1 + 3 * i], before = KEYS[2 + 3 * i], place = KEYS[3 + 3 * i], key = take(), read = take(), stays = take() == '1', polled = take() == '1', drop = list(), set = list()}
end
for i = 1, tonumber(take()) do messages[i] = list() end

redis.call('XLEN', changes)
redis.call('ZCARD', index)
redis.call('ZCARD', poll)
for _, s in ipairs(sets) do
  redis.call('HLEN', s.before)
  redis.call('HLEN', s.place)
  if (redis.call('HGET', s.hash, 'version') or '') ~= s.read then return {'raced', s.key} end
end
for _, s in ipairs(sets) do
  if s.read == '' and s.stays then
    for slash in string.gmatch(s.key, '()/') do
      local above = string.sub(s.key, 1, slash - 1)
      if redis.call('ZSCORE', index, above) then return {'related', s.key, above} end
    end
    local below = redis.call('ZRANGEBYLEX', index, '[' .. s.key .. '/', '(' .. s.key .. '0', 'LIMIT', 0, 1) -- 0 comes after /
    if below[1] then return {'related', s.key, below[1]} end
  end
end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for _, fields in ipairs(messages) do redis.call('XADD', changes, '*', unpack(fields)) end
for _, s in ipairs(sets) do
  if not s.stays then
    redis.call('DEL', s.hash)
    redis.call('ZREM', index, s.key)
  else
    redis.call('HSET', s.hash, 'version', version)
    for i = 1, #s.set, 2 do redis.call('HSET', s.hash, s.set[i], s.set[i + 1]) end
    for _, name in ipairs(s.drop) do redis.call('HDEL', s.hash, name) end
    if #messages > 0 then redis.call('HSET', s.hash, 'asked', now) end
    redis.call('ZADD', index, 0, s.key)
    redis.call('HSET', s.place, s.key, '1')
  end
  if not s.stays or s.before ~= s.place then redis.call('HDEL', s.before, s.key) end
  if s.stays and s.polled then
    redis.call('ZADD', poll, now, s.key)
  else
    redis.call('ZREM', poll, s.key)
  end
end
for _, s in ipairs(sets) do
  for _, place in ipairs({s.before, s.place}) do
    redis.call('HSET', place, 'version', version)
    if redis.call('HLEN', place) == 1 then redis.call('DEL', place) end -- the version alone
  end
end
return {'written'}
