-- feed.lua advances the group over the next results and queues their items, in stream order, all or nothing. The first
-- caller succeeds; the others have to read again.
--
-- KEYS  1-7 see outbox.lua   8 number of the last item (counter)   9 results   10 notifications put back (stream)
-- ARGV  1-2 see outbox.lua   3 group   4 the group's last delivered ID
--       5 number of results that follow it   6 ID of the last of these
--       7 maximum items of a box   8 maximum bytes of an app's items
--       number of entries put back, and their IDs
--       number of items; for each its app, its repo, and the item as JSON
-- Returns {"fed", n}           n: number of items that became dead letters because a box was full
--         {"behind", last}     the group has advanced, or entries are gone; nothing changed.
--                              last: the group's last delivered ID
-- Fails with NOGROUP if the group is gone, and with OOM; then nothing changed.

local numbers, results, again = KEYS[8], KEYS[9], KEYS[10]
local group, last, follow, upto = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local most_box, most_bytes = tonumber(ARGV[7]), tonumber(ARGV[8])

local at = 8
local function arg() at = at + 1; return ARGV[at] end

local given
if redis.call('EXISTS', results) == 1 then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', results)) do
    local info = {}
    for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
    if info['name'] == group then given = info['last-delivered-id'] end
  end
end
if not given then return redis.error_reply('NOGROUP no group ' .. group .. ' of ' .. results) end
if given ~= last then return {'behind', given} end
if follow > 0 then
  local next_ones = redis.call('XRANGE', results, '(' .. last, '+', 'COUNT', follow)
  if #next_ones ~= follow or next_ones[follow][1] ~= upto then return {'behind', given} end
end

local put_back = {}
for i = 1, tonumber(arg()) do
  put_back[i] = arg()
  if not redis.call('XRANGE', again, put_back[i], put_back[i])[1] then return {'behind', given} end
end

-- Nothing has changed up to here. Writes that need memory come first, so that OOM fails the first write or none.
local lost, touched = 0, {}

-- evict turns the oldest item of a box into a dead letter. The due time of the box stays.
local function evict(app, repo)
  if not head_of(app, repo) then return forget(app, repo) end
  lost = lost + 1
  bury(app, repo, 'outbox full', 'more notifications wait for the app than are kept', redis.call('HGET', tries, name_of(app, repo)) or '0')
  pop(app, repo, redis.call('ZSCORE', due_of(app), repo))
end

local function push(app, repo, json)
  local n = number(redis.call('INCR', numbers))
  touched[app] = true
  if redis.call('RPUSH', box_of(app, repo), n .. ' ' .. json) == 1 then
    redis.call('ZADD', heads_of(app), n, repo)
    redis.call('ZADD', due_of(app), number(now), repo)
  end
  redis.call('HINCRBY', counts, app, 1)
  redis.call('HINCRBY', sizes, app, #json)
  if redis.call('LLEN', box_of(app, repo)) > most_box then evict(app, repo) end
  while tonumber(redis.call('HGET', sizes, app) or 0) > most_bytes do
    local oldest = redis.call('ZRANGE', heads_of(app), 0, 0)[1]
    if not oldest then break end
    evict(app, oldest)
  end
end

for _ = 1, tonumber(arg()) do push(arg(), arg(), arg()) end
for app in pairs(touched) do index(app) end
for _, id in ipairs(put_back) do redis.call('XDEL', again, id) end
if follow > 0 then
  redis.call('XREADGROUP', 'GROUP', group, 'notifier', 'COUNT', follow, 'NOACK', 'STREAMS', results, '>')
end
return {'fed', lost}
