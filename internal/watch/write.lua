-- write.lua replaces the watches of one or more repositories and queues changes, in one step, if all of these sets are
-- still the ones that the caller has read.
--
-- KEYS    1 changes (stream)   2 index (ZSET of repository keys, all scores 0)   3 poll (ZSET: repository key -> ms)
--         then for each set: the set (hash), the remote before and the remote after (hashes); if there is none before
--         or none after, both are the same; and the state of the repository (hash);
--         then, if watches move to another path, the records of moves from their path and from the other one (strings)
-- ARGV    1 a new version   2 '1' if a change polls the sets for all apps   3 number of sets; then for each: repository key, the version read ('' for none), '1' if
--         the set stays and '0' if it is removed, '1' if it is polled, '' or the move between cells that writes it, number of fields to
--         remove, those, number of names and values to set, those in turn
--         then the number of changes; then for each: number of names and values of its entry, those in turn
--         then, if watches move, the other path, and how long that is recorded, ms
-- Returns {verdict, …}
--         'written'              success
--         'raced', key           that repository's set has changed; nothing was written
--         'related', key, other  the first was not watched, and the watched other one is above or below it; nothing
--                                was written
--         'moved', key            that repository is in another cell; nothing was written
-- Fails with WRONGTYPE if a key has another type, and with OOM; then nothing changed.
--
-- A set that is polled for all apps records the time of the request, and so does one that a move writes, so that it is polled an
-- interval later. A move is 'moved {cell} {epoch}', with which the mark in the state must begin, or 'arrives {epoch}', if the state knows of no
-- such or later move. Polled sets are scheduled for now; due.lua knows the interval and reschedules them. All written sets and remotes get the new version. XADD comes first: it needs memory, so
-- it fails before anything is written.

local changes, index, poll = KEYS[1], KEYS[2], KEYS[3]
local at = 0
local function arg()
  at = at + 1
  return ARGV[at]
end
local function list()
  local values = {}
  for i = 1, tonumber(arg()) do values[i] = arg() end
  return values
end

local sets, messages = {}, {}
local version, asked, count = arg(), arg() == '1', tonumber(arg())
for i = 1, count do
  sets[i] = {hash = KEYS[4 * i], before = KEYS[4 * i + 1], after = KEYS[4 * i + 2], state = KEYS[4 * i + 3],
    key = arg(), read = arg(), stays = arg() == '1', polled = arg() == '1', moves = arg(), drop = list(), set = list()}
end
for i = 1, tonumber(arg()) do messages[i] = list() end
local moved_to, recorded = arg(), arg()

local function isElsewhere(s)
  local place = redis.call('HGET', s.state, 'cell') or ''
  local epoch = string.match(s.moves, '^arrives (%d+)$')
  if epoch then
    local from = redis.call('HGET', s.state, 'from') or ''
    local last = string.match(place, '^%S+ %S+ (%d+)') or string.match(from, '^%S+ (%d+)') or 0
    return tonumber(last) >= tonumber(epoch)
  end
  return place ~= s.moves and (s.moves == '' or string.sub(place, 1, #s.moves + 1) ~= s.moves .. ' ')
end

redis.call('XLEN', changes)
redis.call('ZCARD', index)
redis.call('ZCARD', poll)
for _, s in ipairs(sets) do
  if isElsewhere(s) then return {'moved', s.key} end
  redis.call('HLEN', s.before)
  redis.call('HLEN', s.after)
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
if moved_to then
  redis.call('SET', KEYS[#KEYS - 1], moved_to, 'PX', recorded)
  redis.call('DEL', KEYS[#KEYS]) -- a repository is there now
end
for _, s in ipairs(sets) do
  if not s.stays then
    redis.call('DEL', s.hash)
    redis.call('ZREM', index, s.key)
  else
    redis.call('HSET', s.hash, 'version', version)
    for i = 1, #s.set, 2 do redis.call('HSET', s.hash, s.set[i], s.set[i + 1]) end
    for _, name in ipairs(s.drop) do redis.call('HDEL', s.hash, name) end
    if asked or s.moves ~= '' then redis.call('HSET', s.hash, 'asked', now) end
    redis.call('ZADD', index, 0, s.key)
    redis.call('HSET', s.after, s.key, '1')
  end
  if not s.stays or s.before ~= s.after then redis.call('HDEL', s.before, s.key) end
  if s.stays and s.polled then
    redis.call('ZADD', poll, now, s.key)
  else
    redis.call('ZREM', poll, s.key)
  end
end
for _, s in ipairs(sets) do
  for _, remote in ipairs({s.before, s.after}) do
    redis.call('HSET', remote, 'version', version)
    if redis.call('HLEN', remote) == 1 then redis.call('DEL', remote) end -- only the version is left
  end
end
return {'written'}
