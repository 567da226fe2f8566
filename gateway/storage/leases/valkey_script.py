"""The rules of :mod:`gateway.storage.leases.rules`, in Lua for Valkey and Redis.

KEYS[1] is the limit's hash. ARGV: now ('' for the server's clock), process, limit, window_s, ttl_s, sequence,
keep, need, least, chunk, debt, spent, acknowledged, whether it is a budget, the key's time to live in s,
seed ('' for none), uses. A field of the hash is ``sequence|held|ends_s|debt|spent|at_s:amount,…``.
"""

SCRIPT = r"""
local key, now, process = KEYS[1], tonumber(ARGV[1]), ARGV[2]
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local limit, window, ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local sequence = tonumber(ARGV[6])
local keep, need, least, chunk = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local debt, spent, acknowledged = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local budget, lasts, seed = ARGV[14] == '1', tonumber(ARGV[15]), tonumber(ARGV[16])

local function text(number) return string.format('%.17g', number) end

-- what the others have, and what this process said before
local others, debts, latest, counted, before = 0, 0, now - window, nil, nil
local function answer(granted, paid, used, wait, reset, seeded)
  local said = {text(granted), text(paid), text(used), wait and text(wait) or '', text(reset), seeded}
  said[7] = text(counted or 0)
  return said
end
local leaving = {}
local fields = redis.call('HGETALL', key)
for index = 1, #fields, 2 do
  local name, value = fields[index], fields[index + 1]
  if name == '=' then
    counted = tonumber(value)
  else
    local said, held, ends, owed, total, uses = string.match(value, '^(.-)|(.-)|(.-)|(.-)|(.-)|(.*)$')
    held, ends, owed = tonumber(held), tonumber(ends), tonumber(owed)
    local over, live = ends + window <= now, false
    if over then held, owed = 0, 0 end
    local sum, mine = held, {}
    for at, amount in string.gmatch(uses, '([^:,]+):([^:,]+)') do
      at, amount = tonumber(at), tonumber(amount)
      if at + window > now then
        live = true
        sum = sum + amount
        mine[#mine + 1] = {at, amount}
      end
    end
    if over and not live then
      redis.call('HDEL', key, name)
    elseif name == process then
      before = {tonumber(said), tonumber(total)}
    else
      others, debts = others + sum, debts + owed
      for _, use in ipairs(mine) do
        leaving[#leaving + 1] = use
        if use[1] > latest then latest = use[1] end
      end
      if held > 0 then leaving[#leaving + 1] = {ends, held} end
    end
  end
end
if before and before[1] >= sequence then return answer(0, 0, limit, nil, 0, '1') end

if budget then
  if not counted and not seed then return answer(0, 0, 0, nil, 0, '0') end
  local more = spent - (before and before[2] or acknowledged)
  counted = math.max((counted or 0) + math.max(0, more), seed or 0)
  redis.call('HSET', key, '=', text(counted))
  others = others + counted
end

local own, packed = keep, {}
local function note(at, amount)
  packed[#packed + 1] = text(at) .. ':' .. text(amount)
  leaving[#leaving + 1] = {at, amount}
  if at > latest then latest = at end
end
for age, amount in string.gmatch(ARGV[17], '([^:,]+):([^:,]+)') do
  age, amount = tonumber(age), tonumber(amount)
  if age < window then
    own = own + amount
    note(now - age, amount)
  end
end
local paid = math.max(0, math.min(debt, limit - others - own))
if paid > 0 then note(now, paid) end
debt = debt - paid
local total = others + debts + own + paid + debt

local granted, free = 0, limit - total
if need > 0 and free >= least then
  if need < chunk and total + need <= limit / 2 then need = chunk end
  granted = math.min(need, free)
end
local held = keep + granted
if budget or held > 0 or debt > 0 or #packed > 0 then
  local said = {text(sequence), text(held), text(now + ttl), text(debt), text(spent)}
  said[6] = table.concat(packed, ',')
  redis.call('HSET', key, process, table.concat(said, '|'))
  redis.call('PEXPIRE', key, math.ceil(lasts * 1000))
else
  redis.call('HDEL', key, process)
end

local wait = 0
if granted < least then
  wait = nil
  if least <= limit and window > 0 then
    wait = window
    if held > 0 then leaving[#leaving + 1] = {now + ttl, held} end
    table.sort(leaving, function(a, b) return a[1] < b[1] end)
    local missing = total + least - limit
    for _, use in ipairs(leaving) do
      missing = missing - use[2]
      if missing <= 0 then
        wait = use[1] + window - now
        break
      end
    end
  end
end
return answer(granted, paid, total + granted, wait, math.max(0, latest + window - now), '1')
"""
